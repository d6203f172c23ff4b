//! Short-lived commands of the host: their errors name the command and repeat what it said.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a command, discarding its output unless it fails.
///
/// # Errors
/// If it cannot start or fails, with what it printed.
pub fn run(command: Command) -> Result<()> {
    output(command).map(|_| ())
}

/// Runs a command and returns its standard output.
///
/// # Errors
/// If it cannot start or fails, with what it printed.
pub fn output(mut command: Command) -> Result<String> {
    let shown = show(&command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{shown}` ended with {}: {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn show(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|argument| argument.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Builds a command from words.
#[must_use]
pub fn words(words: &[&str]) -> Command {
    let mut command = Command::new(words.first().copied().unwrap_or("true"));
    command.args(words.get(1..).unwrap_or_default());
    command
}
