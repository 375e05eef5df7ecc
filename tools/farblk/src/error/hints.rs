// SPDX-License-Identifier: GPL-2.0
//! The remedies that an error comes with: lines of shell, with values quoted as its words.

use schemars::JsonSchema;
use serde::Serialize;

use crate::quote;

/// Remedies. Each is a line of shell that can be run as it is, but for words in capitals; what
/// people should know is a comment in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Hints {
    /// All of them, one on each line.
    hint: String,
    hints: Vec<String>,
}

impl Hints {
    /// Those of a text with one on each line. In unit tests each must be shell.
    pub fn new(hint: String) -> Self {
        #[cfg(test)]
        for line in hint.lines() {
            assert!(is_shell(line), "no line of shell: {line}");
        }
        Self {
            hints: hint.lines().map(str::to_owned).collect(),
            hint,
        }
    }

    /// One a line.
    pub fn lines(&self) -> &[String] {
        &self.hints
    }

    /// These, and then others.
    pub fn and(mut self, others: &[String]) -> Self {
        self.hints.extend_from_slice(others);
        Self::new(self.hints.join("\n"))
    }
}

/// Puts the values of its `{key}`s into a hint, as words of the shell.
///
/// The tool would take a value that begins with "-" for an option. Such a value gets a "--" before
/// it, and the options of the command get before that.
pub fn fill_in<V: AsRef<str>>(hint: &str, values: &[(&str, V)]) -> String {
    let lines = hint.lines().map(|line| {
        let (command, comment) = line.split_at(line.find("  #").unwrap_or(line.len()));
        let mut words: Vec<&str> = command.split(' ').collect();
        let is_dashed =
            |word: &&str| word.starts_with('{') && expand(word, values).starts_with('-');
        if let Some(first) = words.iter().position(is_dashed) {
            if words[0] == "farblk" {
                let operands = words.split_off(first);
                let (options, operands): (Vec<_>, Vec<_>) = operands
                    .into_iter()
                    .partition(|word| word.starts_with("--"));
                words.extend(options);
                words.push("--");
                words.extend(operands);
            }
        }
        expand(&(words.join(" ") + comment), values)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Replaces the `{key}`s.
fn expand<V: AsRef<str>>(mut text: &str, values: &[(&str, V)]) -> String {
    let mut expanded = String::new();
    while let Some((before, rest)) = text.split_once('{') {
        let (key, after) = rest.split_once('}').unwrap_or((rest, ""));
        let value = match values.iter().find(|(have, _)| *have == key) {
            Some((_, value)) => quote::word(value.as_ref()),
            None => key.to_ascii_uppercase(),
        };
        expanded = expanded + before + &value;
        text = after;
    }
    expanded + text
}

/// Returns true if the shell can read the text.
#[cfg(test)]
pub fn is_shell(text: &str) -> bool {
    use std::collections::BTreeSet;
    use std::sync::{Mutex, PoisonError};

    // Tests see the same texts again and again.
    static READ: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let read = || READ.lock().unwrap_or_else(PoisonError::into_inner);
    if read().contains(text) {
        return true;
    }
    let shell = std::process::Command::new("bash")
        .args(["-n", "-c", text])
        .stderr(std::process::Stdio::null())
        .status();
    let is_shell = shell.expect("bash").success();
    if is_shell {
        read().insert(text.to_owned());
    }
    is_shell
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_looks_like_an_option() {
        for (export, holder, line) in [
            ("e", "h", "farblk export deny e h --force  # data of h"),
            (
                "e",
                "-h",
                "farblk export deny e --force -- -h  # data of -h",
            ),
            ("-e", "h", "farblk export deny --force -- -e h  # data of h"),
        ] {
            let values = [("export", export), ("holder", holder)];
            let hint = "farblk export deny {export} {holder} --force  # data of {holder}";
            assert_eq!(fill_in(hint, &values), line);
        }
        let values = [("host", "-h"), ("map", "-m")];
        for (hint, line) in [
            ("# is {host} up?\nfarblk list", "# is -h up?\nfarblk list"),
            ("farblk list  # {host}", "farblk list  # -h"),
            ("farblk path add {map} HOST", "farblk path add -- -m HOST"),
        ] {
            assert_eq!(fill_in(hint, &values), line);
        }
    }
}
