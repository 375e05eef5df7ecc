// SPDX-License-Identifier: GPL-2.0
//! The manual pages: one for the tool, and one for each command. Their options come from the
//! definition of the command line, their files and examples from the folder `man`.

use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::cli::Cli;

const SECTION: &str = "8";

/// The page about the files of settings.
const SETTINGS_PAGE: &str = "farblk.toml(5)";

/// Descriptions, each followed by the indented lines of shell that do it. Those above the line of
/// dashes are a first session, for the page of the tool; the others are for the commands in them.
const EXAMPLES: &str = include_str!("../man/examples");

/// The files: a path, the commands that have to do with it ("*": all) after a colon, and indented
/// lines that describe it.
const FILES: &str = include_str!("../man/files");

/// A manual page.
pub struct Page {
    /// The name of its file, for example "farblk-map.8".
    pub file: String,
    /// What roff reads.
    pub text: Vec<u8>,
}

/// Writes all pages into `folder`.
pub fn write(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    pages()?
        .into_iter()
        .try_for_each(|page| std::fs::write(folder.join(page.file), page.text))
}

/// Makes all pages.
pub fn pages() -> io::Result<Vec<Page>> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    // "Exit codes: 0 ok, 1 other", as the help of the tool ends.
    let codes = root.get_after_help().map(ToString::to_string);
    let codes = codes.unwrap_or_default();
    let codes = codes.split_once(": ").unwrap_or_default().1;
    let mut pages = Vec::new();
    add(&root, None, codes, &mut pages)?;
    Ok(pages)
}

/// Adds the page of `command`, which is a subcommand of that of the page `parent`, and those of its
/// subcommands.
fn add(
    command: &Command,
    parent: Option<&str>,
    codes: &str,
    pages: &mut Vec<Page>,
) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let line = command.get_bin_name().unwrap_or(command.get_name());
    let man = Man::new(command.clone())
        .section(SECTION)
        .title(name)
        .source(concat!("farblk ", env!("CARGO_PKG_VERSION")))
        .manual("farblk");
    let subcommands: Vec<_> = command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set())
        .collect();
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if !subcommands.is_empty() {
        man.render_subcommands_section(&mut text)?;
    }
    let codes_list = codes.split(", ").filter_map(|code| code.split_once(' '));
    text.extend(b".SH EXIT STATUS\n");
    text.extend(terms(codes_list).as_bytes());
    text.extend(b".SH FILES\n");
    text.extend(terms(files(line)).as_bytes());
    text.extend(b".SH EXAMPLES\n");
    text.extend(examples(line).as_bytes());
    let others = subcommands.iter().filter_map(|sub| sub.get_display_name());
    let related = parent.into_iter().chain(others);
    let mut related: Vec<_> = related.map(|page| format!("{page}({SECTION})")).collect();
    related.push(SETTINGS_PAGE.into());
    text.extend(b".SH SEE ALSO\n");
    text.extend(escape(&related.join(", ")).as_bytes());
    text.push(b'\n');
    pages.push(Page {
        file: format!("{name}.{SECTION}"),
        text,
    });
    subcommands
        .into_iter()
        .try_for_each(|sub| add(sub, Some(name), codes, pages))
}

/// A list of terms, each with its description, in roff.
fn terms(list: impl Iterator<Item = (impl AsRef<str>, impl AsRef<str>)>) -> String {
    list.map(|(term, text)| {
        let (term, text) = (escape(term.as_ref()), escape(text.as_ref()));
        format!(".TP\n\\fB{term}\\fR\n{text}\n")
    })
    .collect::<Vec<_>>()
    .concat()
}

/// The parts of `text` that begin at a line without an indent: that line, and those below it.
fn parts(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut parts: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        match (line.strip_prefix('\t'), parts.last_mut()) {
            (Some(line), Some((_, lines))) => lines.push(line),
            _ => parts.push((line, Vec::new())),
        }
    }
    parts
}

/// The files that the command `line` has to do with, and what they are.
fn files(line: &str) -> impl Iterator<Item = (String, String)> {
    let command = line.split(' ').nth(1);
    parts(FILES)
        .into_iter()
        .filter_map(move |(heading, lines)| {
            let (path, commands) = heading.split_once(": ")?;
            let concerns = command.is_none_or(|command| {
                let mut commands = commands.split(' ');
                commands.any(|name| name == "*" || name == command)
            });
            concerns.then(|| (path.to_owned(), lines.join(" ")))
        })
}

/// The examples of the command `line`, in roff.
fn examples(line: &str) -> String {
    let (session, others) = EXAMPLES.split_once("\n---\n").unwrap_or((EXAMPLES, ""));
    let examples = match line.contains(' ') {
        true => parts(others),
        false => parts(session),
    };
    let calls = |lines: &[&str]| lines.iter().any(|shell| names(shell, line));
    examples
        .into_iter()
        .filter(|(_, lines)| calls(lines))
        .map(|(what, lines)| {
            let lines: Vec<_> = lines.into_iter().map(escape).collect();
            let (what, lines) = (escape(what), lines.join("\n"));
            format!(".PP\n{what}\n.PP\n.RS 4\n.nf\n{lines}\n.fi\n.RE\n")
        })
        .collect::<Vec<_>>()
        .concat()
}

/// Returns true if the line of shell calls the command `line`, or a subcommand of it.
fn names(shell: &str, line: &str) -> bool {
    shell.match_indices(line).any(|(at, _)| {
        matches!(
            shell.as_bytes().get(at + line.len()),
            None | Some(b' ' | b')')
        )
    })
}

/// `text` as roff prints it.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    // These begin a request of roff.
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn examples_are_valid_command_lines() {
        let shell = EXAMPLES.lines().filter_map(|line| line.strip_prefix('\t'));
        let mut found = 0;
        for line in shell {
            for (at, _) in line.match_indices("farblk ") {
                if at > 0 && !line[..at].ends_with([' ', '(']) {
                    continue;
                }
                let words = line[at..].split([')', '|', '&', '#', ';', '>']).next();
                let words = words.unwrap_or_default().split_whitespace();
                let parsed = Cli::try_parse_from(words);
                assert!(parsed.is_ok(), "{line}: {:?}", parsed.err());
                found += 1;
            }
        }
        assert!(found > 10);
    }

    #[test]
    fn what_the_pages_have() {
        let pages = pages().expect("pages");
        let page = |file: &str| {
            let page = pages.iter().find(|page| page.file == file).expect(file);
            String::from_utf8(page.text.clone()).expect("text")
        };
        for name in ["farblk.8", "farblk-map.8", "farblk-export-create.8"] {
            let text = page(name);
            for part in [
                ".TH farblk",
                ".SH NAME\n",
                ".SH EXIT STATUS\n.TP\n\\fB0\\fR\nok\n",
                ".SH FILES\n.TP\n\\fB/",
                ".SH EXAMPLES\n.PP\n",
                "farblk.toml(5)\n",
            ] {
                assert!(text.contains(part), "{name}: {part}: {text}");
            }
        }
        assert!(page("farblk-export.8").contains("farblk\\-export\\-create(8)"));
        assert!(page("farblk-export-create.8").contains(".nf\nfarblk export create"));
        assert!(!page("farblk-map.8").contains("farblk export create"));
    }

    #[test]
    fn what_roff_would_misread() {
        assert_eq!(escape(".a"), "\\&.a");
        assert_eq!(escape("a -b \\ c"), "a \\-b \\e c");
        assert!(names("dev=$(farblk map)", "farblk map"));
        assert!(!names("farblk mapping", "farblk map"));
    }
}
