// SPDX-License-Identifier: GPL-2.0
//! The output: results on stdout, progress and errors on stderr.

use std::cell::{Cell, RefCell};
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::{Code, Error, Hints};

const RED: Style = AnsiColor::Red.on_default().bold();
const YELLOW: Style = AnsiColor::Yellow.on_default();
const GREEN: Style = AnsiColor::Green.on_default();
const CYAN: Style = AnsiColor::Cyan.on_default();

/// A warning on stderr when the output is JSON, schema `farblk.warning/1`.
#[derive(JsonSchema, Serialize)]
pub struct Warning<'a> {
    schema: &'static str,
    text: &'a str,
    #[serde(flatten)]
    hints: &'a Hints,
}

/// The streams of the output, and the amount of it.
pub struct Output {
    json: bool,
    /// True if JSON documents on stdout have several lines.
    pretty: bool,
    quiet: bool,
    out: RefCell<Box<dyn Write>>,
    err: RefCell<Box<dyn Write>>,
    /// The terminal of the user, if there is one.
    answers: Option<RefCell<Box<dyn BufRead>>>,
    /// True if a line with progress on stderr has no newline yet.
    line_open: Cell<bool>,
    /// True if results go to stdout, so that its reader can be watched.
    is_stdout: bool,
    /// True if the reader of the results went away.
    is_over: Cell<bool>,
    /// True if no lines are drawn with characters beyond ASCII: a program may read them, or a
    /// terminal that has none.
    is_plain: bool,
}

impl Output {
    /// Output to stdout and stderr.
    pub fn new(json: bool, quiet: bool) -> Self {
        let asks = io::stdin().is_terminal() && io::stderr().is_terminal();
        let answers = || Box::new(io::stdin().lock()) as Box<dyn BufRead>;
        let output = Self::to(
            json,
            quiet,
            Box::new(anstream::stdout()),
            Box::new(anstream::stderr()),
            asks.then(answers),
        );
        Self {
            is_stdout: true,
            is_plain: !io::stdout().is_terminal() || !is_utf8(),
            ..output
        }
    }

    /// Output to `out` and `err`; questions are answered by `answers`.
    pub fn to(
        json: bool,
        quiet: bool,
        out: Box<dyn Write>,
        err: Box<dyn Write>,
        answers: Option<Box<dyn BufRead>>,
    ) -> Self {
        Self {
            json,
            pretty: false,
            quiet,
            out: RefCell::new(out),
            err: RefCell::new(err),
            answers: answers.map(RefCell::new),
            line_open: Cell::new(false),
            is_stdout: false,
            is_over: Cell::new(false),
            is_plain: false,
        }
    }

    /// Says whether results are indented.
    pub fn pretty(self, pretty: bool) -> Self {
        Self { pretty, ..self }
    }

    /// Returns true if results are JSON documents.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Prints a line on stdout, whatever the options say. A reader that went away is no error. In
    /// unit tests what follows "hint: " or "fix: " must be shell.
    pub fn line(&self, text: &str) -> Result<(), Error> {
        #[cfg(test)]
        for start in [" hint: ", " fix: ", " fix, on the server: "] {
            let hints = text.lines().filter_map(|line| line.split_once(start));
            hints.for_each(|(_, hint)| assert!(crate::error::is_shell(hint), "{hint}"));
        }
        self.end_line();
        let mut out = self.out.borrow_mut();
        match writeln!(out, "{text}").and_then(|()| out.flush()) {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Error::new(
                Code::Io,
                "cannot write the result",
                e.to_string(),
            )),
            Err(_) => {
                self.is_over.set(true);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Writes a secret to stdout, past the buffers in which it would stay.
    pub fn secret(&self, line: &[u8]) -> io::Result<()> {
        self.end_line();
        if !self.is_stdout {
            return self.out.borrow_mut().write_all(line);
        }
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        std::fs::File::from(stdout).write_all(line)
    }

    /// Waits for `time`, for a command that prints again and again. Returns false at once when the
    /// reader of stdout goes away: there is nobody to print for.
    pub fn wait(&self, time: Duration) -> bool {
        if !self.is_stdout {
            thread::sleep(time);
            return !self.is_over.get();
        }
        let end = Instant::now() + time;
        let stdout = io::stdout();
        while !self.is_over.get() {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = Timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            // Without any flag it waits for errors alone, among these that a pipe has no reader.
            let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return true,
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => {
                    thread::sleep(left);
                    return true;
                }
            }
        }
        false
    }

    /// Prints lines as the branches of the line before them.
    pub fn branches(&self, branches: &[String]) -> Result<(), Error> {
        for (index, branch) in branches.iter().enumerate() {
            let corner = match (index + 1 == branches.len(), self.is_plain) {
                (true, false) => "└─",
                (false, false) => "├─",
                (true, true) => "`-",
                (false, true) => "|-",
            };
            self.line(&format!(" {corner} {branch}"))?;
        }
        Ok(())
    }

    /// The result of a command that changed something: `text` (nothing when quiet), or `document`
    /// as JSON.
    pub fn result(&self, text: &str, document: &impl Serialize) -> Result<(), Error> {
        match (self.json, self.quiet) {
            (true, _) => self.document(document),
            (false, true) => Ok(()),
            (false, false) => self.line(text),
        }
    }

    /// Prints a JSON document, on one line unless it shall be pretty.
    pub fn document(&self, document: &impl Serialize) -> Result<(), Error> {
        self.line(&json(document, self.pretty)?)
    }

    /// Starts a stage of a longer command: "resolving a .. connecting" on stderr.
    pub fn stage(&self, text: &str) {
        if self.json || self.quiet {
            return;
        }
        let separator = if self.line_open.replace(true) {
            " .. "
        } else {
            ""
        };
        self.write_err(&format!("{separator}{text}"));
    }

    /// A line for people on stderr.
    pub fn note(&self, text: &str) {
        if self.json || self.quiet {
            return;
        }
        self.end_line();
        self.write_err(&format!("{text}\n"));
    }

    /// A hint for people on stderr, without an error.
    pub fn hint(&self, hint: impl Into<String>) {
        if self.json || self.quiet {
            return;
        }
        self.end_line();
        self.write_err(&hint_lines(&Hints::new(hint.into())));
    }

    /// A warning: on stderr, also when quiet.
    pub fn warn(&self, text: &str) {
        self.warn_with(text, &Hints::default());
    }

    /// A warning with its remedies.
    pub fn warn_with(&self, text: &str, hints: &Hints) {
        self.end_line();
        if self.json {
            let document = Warning {
                schema: "farblk.warning/1",
                text,
                hints,
            };
            let text = json(&document, false).unwrap_or_default();
            self.write_err(&format!("{text}\n"));
            return;
        }
        let text = format!("{YELLOW}warning{YELLOW:#}: {text}\n");
        self.write_err(&(text + &hint_lines(hints)));
    }

    /// Asks whether to go on; `None` if there is nobody to ask, as where the output is JSON: a
    /// program reads that.
    pub fn confirm(&self, question: &str) -> Option<bool> {
        let answers = self.answers.as_ref().filter(|_| !self.json)?;
        self.end_line();
        self.write_err(&format!("{question} [y/N] "));
        let mut answer = String::new();
        let _ = answers.borrow_mut().read_line(&mut answer);
        Some(matches!(
            answer.trim().to_ascii_lowercase().as_str(),
            "y" | "yes"
        ))
    }

    /// Ends the line of stages.
    pub fn end_line(&self) {
        if self.line_open.replace(false) {
            self.write_err("\n");
        }
    }

    /// Prints an error on stderr.
    pub fn error(&self, error: &Error) {
        self.end_line();
        if self.json {
            let text = json(&error.document(), false).unwrap_or_default();
            self.write_err(&format!("{text}\n"));
            return;
        }
        let mut text = format!("{RED}error[{}]{RED:#}: {error}\n", error.code.entry().name);
        for line in &error.details {
            text += &format!("  {line}\n");
        }
        self.write_err(&(text + &hint_lines(&error.hints())));
    }

    /// Nothing can be done about a stderr that does not take the text.
    fn write_err(&self, text: &str) {
        let mut err = self.err.borrow_mut();
        let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
    }
}

/// Returns true if the locale of the user has UTF-8.
fn is_utf8() -> bool {
    let values = ["LC_ALL", "LC_CTYPE", "LANG"].map(std::env::var_os);
    let locale = values.into_iter().flatten().find(|value| !value.is_empty());
    let locale = locale.unwrap_or_default().to_string_lossy().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Makes the text of a JSON document. In unit tests it must obey its schema.
fn json(document: &impl Serialize, pretty: bool) -> Result<String, Error> {
    let text = match pretty {
        true => serde_json::to_string_pretty(document),
        false => serde_json::to_string(document),
    };
    #[cfg(test)]
    text.iter().for_each(|text| crate::cmd::schema::check(text));
    text.map_err(|e| Error::new(Code::Io, "cannot write the result", e.to_string()))
}

fn hint_lines(hints: &Hints) -> String {
    let line = |hint: &String| format!("  {CYAN}hint:{CYAN:#} {hint}\n");
    hints.lines().iter().map(line).collect()
}

/// Marks a word that must not be overlooked.
pub fn alert(text: &str) -> String {
    format!("{YELLOW}{text}{YELLOW:#}")
}

/// Colours the state of an object: what works, what may work again by itself, and what does not.
pub fn state(text: &str) -> String {
    let style = match text {
        "live" | "listening" | "online" => GREEN,
        "connecting" | "reconnecting" | "waiting" | "allocating" | "closing" => YELLOW,
        "failed" | "stale" | "evicted" | "error" | "unavailable" => RED,
        _ => return text.to_owned(),
    };
    format!("{style}{text}{style:#}")
}

/// A table without lines: two spaces between the columns, the heading first. One string per row.
/// What is below "STATE" has the colour of the state.
pub fn table(heading: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    // A mount point may have a newline in its name.
    let cell = |text: &String| match text.is_empty() {
        true => "-".to_owned(),
        false => text.replace(char::is_control, "?"),
    };
    let mut lines = vec![heading.iter().map(|&text| text.to_owned()).collect()];
    lines.extend(
        rows.iter()
            .map(|row| row.iter().map(cell).collect::<Vec<_>>()),
    );
    let mut widths = vec![0; heading.len()];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let pad = |((cell, &width), heading): ((&String, &usize), &&str)| {
        let blanks = " ".repeat(width - cell.chars().count() + 2);
        match *heading {
            "STATE" => state(cell) + &blanks,
            _ => cell.clone() + &blanks,
        }
    };
    lines
        .iter()
        .map(|line| {
            let cells = line.iter().zip(&widths).zip(heading);
            cells.map(pad).collect::<String>()
        })
        .map(|line| line.trim_end().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables() {
        let rows = [
            vec!["scratch".to_owned(), "4.0 GiB".to_owned(), String::new()],
            vec!["v".to_owned(), "512 B".to_owned(), "x y".to_owned()],
        ];
        let want = [
            "MAP      SIZE     HOLDERS",
            "scratch  4.0 GiB  -",
            "v        512 B    x y",
        ];
        assert_eq!(table(&["MAP", "SIZE", "HOLDERS"], &rows), want);
        assert_eq!(table(&["A"], &[]), ["A"]);
    }
}
