// SPDX-License-Identifier: GPL-2.0
//! Programs of the host that only show something, such as nft(8).

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Timeout for a program.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two looks at a program that runs.
const POLL_PAUSE: Duration = Duration::from_millis(5);
/// The largest output that is read, in bytes.
const OUTPUT_MAX: u64 = 16 << 20;

/// The outcome of a program.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded, and printed this.
    Text(String),
    /// It failed, and printed this on stderr.
    Failed(String),
    /// The host has no such program.
    Missing,
}

/// Runs a program, and ends it after five seconds.
pub fn run(program: &str, arguments: &[&str]) -> Outcome {
    let child = Command::new(program)
        .env("LC_ALL", "C")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    match child {
        Ok(child) => wait(child),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Outcome::Missing,
        Err(e) => Outcome::Failed(e.to_string()),
    }
}

fn wait(mut child: Child) -> Outcome {
    // A program whose pipe is full does not end, so both are read meanwhile.
    let stdout = child.stdout.take().map(|pipe| thread::spawn(|| read(pipe)));
    let stderr = child.stderr.take().map(|pipe| thread::spawn(|| read(pipe)));
    let deadline = Instant::now() + TIMEOUT;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(POLL_PAUSE),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Outcome::Failed(format!("no answer in {} s", TIMEOUT.as_secs()));
            }
        }
    };
    let text = |reader: Option<thread::JoinHandle<String>>| {
        reader
            .and_then(|reader| reader.join().ok())
            .unwrap_or_default()
    };
    match status.success() {
        true => Outcome::Text(text(stdout)),
        false => Outcome::Failed(text(stderr).trim().to_owned()),
    }
}

fn read(pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = pipe.take(OUTPUT_MAX).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes() {
        let run = |script| run("sh", &["-c", script]);
        assert_eq!(run("echo a; echo b >&2"), Outcome::Text("a\n".into()));
        assert_eq!(
            run("echo a; echo b >&2; exit 1"),
            Outcome::Failed("b".into())
        );
        assert_eq!(super::run("/no/such/program", &[]), Outcome::Missing);
        // More than a pipe holds.
        let long = run("yes | head -c 300000");
        assert!(matches!(long, Outcome::Text(text) if text.len() == 300_000));
    }
}
