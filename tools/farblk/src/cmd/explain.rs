// SPDX-License-Identifier: GPL-2.0
//! `farblk explain`: what an error code, a check of doctor or a last_error means, and what to do.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Context, doctor};
use crate::error::{self, Code, Entry, Error, Peer, TABLE};
use crate::name;

mod causes;

/// An explanation, schema `farblk.explain/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    topics: Vec<Topic>,
}

/// What is explained: an error code or a check of doctor.
#[derive(JsonSchema, Serialize)]
struct Topic {
    /// "F0203", or the name of a check.
    name: String,
    /// The exit code of a command that fails with this code; `null` of a check.
    exit: Option<u8>,
    /// What it means, in a few words.
    meaning: String,
    /// Why it happens.
    cause: String,
    /// What to do. Words in capitals have to be replaced.
    cures: Vec<String>,
    /// How it looks.
    example: Vec<String>,
}

impl Topic {
    fn of_code(entry: &Entry) -> Self {
        let (cause, example) = causes::of(entry.name);
        Self {
            name: entry.name.to_owned(),
            exit: Some(entry.exit),
            meaning: entry.meaning.to_owned(),
            cause: cause.to_owned(),
            cures: cures(entry),
            example: lines(example),
        }
    }

    fn of_check(name: &str, text: &str) -> Self {
        Self {
            name: name.to_owned(),
            exit: None,
            meaning: format!("a check of farblk doctor: {name}"),
            cause: text.to_owned(),
            cures: vec![
                "farblk doctor  # names the command, with the values of this host".to_owned(),
            ],
            example: lines(causes::of_check(name)),
        }
    }

    fn print(&self, context: &Context) -> Result<(), Error> {
        let line = |text: &str| context.output.line(text);
        let exit = self
            .exit
            .map_or(String::new(), |exit| format!(" (exit code {exit})"));
        line(&format!("{}: {}{exit}", self.name, self.meaning))?;
        line("")?;
        fold(&self.cause)
            .iter()
            .try_for_each(|text| line(&format!("  {text}")))?;
        for (heading, texts) in [("What to do:", &self.cures), ("Example:", &self.example)] {
            if texts.is_empty() {
                continue;
            }
            line("")?;
            line(&format!("  {heading}"))?;
            texts
                .iter()
                .try_for_each(|text| line(&format!("    {text}")))?;
        }
        Ok(())
    }
}

/// The remedies of a code; of one whose remedy depends on the command, where to find it.
fn cures(entry: &Entry) -> Vec<String> {
    let hints = entry.hints();
    match hints.lines() {
        [] => causes::cure(entry.name)
            .lines()
            .map(str::to_owned)
            .collect(),
        lines => lines.to_vec(),
    }
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// Breaks a text into lines.
fn fold(text: &str) -> Vec<String> {
    const WIDTH: usize = 90;
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines
            .last_mut()
            .map(|line| line.chars().count())
            .unwrap_or_default();
        if last > 0 && last + 1 + word.chars().count() > WIDTH {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

/// Returns the codes that the words of a last_error, or of a message of this tool, mean.
fn find(words: &str) -> Vec<&'static Entry> {
    // "ECONNREFUSED nobody listens on ..." as in configfs.
    let (first, rest) = words.split_once(' ').unwrap_or((words, ""));
    let first = first.trim_end_matches(':');
    if error::is_errno(first) {
        let mut codes: Vec<_> = [Peer::Server, Peer::Device, Peer::Nobody]
            .map(|peer| Code::from_words(first, rest, peer).entry())
            .to_vec();
        // With words, it is the last error of a map or path.
        if !rest.is_empty() {
            codes.truncate(1);
        }
        let mut known: Vec<&'static Entry> = Vec::new();
        for entry in codes {
            if !known.iter().any(|other| other.name == entry.name) {
                known.push(entry);
            }
        }
        return known;
    }
    let lower = words.to_lowercase();
    let by_text = |entry: &&Entry| {
        lower.contains(&entry.name.to_lowercase())
            || lower.contains(entry.meaning)
            || causes::words(entry.name)
                .iter()
                .any(|text| lower.contains(text))
    };
    TABLE.iter().filter(by_text).collect()
}

/// Runs `farblk explain`. It needs no module.
pub fn run(context: &Context, words: &[String]) -> Result<(), Error> {
    let wanted = words.join(" ");
    let topics = topics(&wanted);
    if topics.is_empty() {
        let names = doctor::CHECKS.iter().map(|(name, _)| (*name).to_owned());
        let names: Vec<_> = names
            .chain(TABLE.iter().map(|entry| entry.name.to_owned()))
            .collect();
        let meant = match name::nearest(&wanted, &names) {
            Some(meant) => format!("farblk explain {meant}  # did you mean {meant}?"),
            None => "farblk explain  # without words: shows all codes and checks".to_owned(),
        };
        let why = format!("nothing is known of {wanted:?}");
        return Err(Error::new(Code::NotFound, "cannot explain it", why).hint(meant));
    }
    if context.output.is_json() {
        return context.output.document(&Document {
            schema: "farblk.explain/1",
            topics,
        });
    }
    if words.is_empty() {
        let rows = topics
            .iter()
            .map(|topic| vec![topic.name.clone(), topic.meaning.clone()]);
        let rows: Vec<_> = rows.collect();
        return crate::output::table(&["TOPIC", "MEANING"], &rows)
            .iter()
            .try_for_each(|line| context.output.line(line));
    }
    for (index, topic) in topics.iter().enumerate() {
        if index > 0 {
            context.output.line("")?;
        }
        topic.print(context)?;
    }
    Ok(())
}

/// Returns what the words mean: all topics if there are none.
fn topics(wanted: &str) -> Vec<Topic> {
    let checks = doctor::CHECKS.iter();
    if wanted.is_empty() {
        let codes = TABLE.iter().map(Topic::of_code);
        return codes
            .chain(checks.map(|(name, text)| Topic::of_check(name, text)))
            .collect();
    }
    let upper = wanted.to_uppercase();
    if let Some(entry) = TABLE.iter().find(|entry| entry.name == upper) {
        return vec![Topic::of_code(entry)];
    }
    let lower = wanted.to_lowercase();
    if let Some((name, text)) = doctor::CHECKS.iter().find(|(name, _)| *name == lower) {
        return vec![Topic::of_check(name, text)];
    }
    find(wanted).into_iter().map(Topic::of_code).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::is_shell;

    #[test]
    fn everything_is_explained() {
        for topic in topics("") {
            assert!(topic.cause.len() > 40, "{}: {}", topic.name, topic.cause);
            assert!(
                topic.cause.ends_with('.'),
                "{}: {}",
                topic.name,
                topic.cause
            );
            assert!(!topic.cures.is_empty(), "{}", topic.name);
            assert!(!topic.example.is_empty(), "{}", topic.name);
            for line in &topic.cures {
                assert!(is_shell(line), "{}: {line}", topic.name);
            }
        }
        assert_eq!(topics("").len(), TABLE.len() + doctor::CHECKS.len());
    }

    #[test]
    fn words_of_the_kernel() {
        let names =
            |words: &str| -> Vec<_> { find(words).iter().map(|entry| entry.name).collect() };
        for (words, code) in [
            ("ECONNREFUSED nobody listens on 10.0.0.1:7420", "F0203"),
            ("EACCES the export does not admit this host", "F0204"),
            ("EBUSY in use by node-c, away for 33 s", "F0217"),
            ("EBUSY in use by node-c", "F0209"),
            ("ESTALE the export has another instance", "F0301"),
            ("EACCES the export was another's since", "F0302"),
            ("nobody listens on 10.0.0.1:7420", "F0203"),
            ("error[F0205]: cannot map x: nothing", "F0205"),
            ("cannot map x: no answer in time", "F0205"),
        ] {
            assert_eq!(names(words), [code], "{words}");
        }
        assert_eq!(names("EBUSY"), ["F0104", "F0107"]);
        assert!(names("all is well").is_empty());
    }

    #[test]
    fn long_texts_are_folded() {
        let text = "word ".repeat(50);
        let lines = fold(&text);
        assert!(lines.len() > 1 && lines.iter().all(|line| line.len() <= 90));
        assert_eq!(lines.join(" "), text.trim_end());
    }
}
