//! Shell completions and manual pages, from the definitions of the commands themselves.

use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;

/// `sluice completions SHELL`.
pub(crate) fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sluice", &mut script);
    crate::out::line(format_args!("{}", String::from_utf8_lossy(&script).trim_end()));
    Ok(())
}

/// `sluice man DIR`.
pub(crate) fn man(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    clap_mangen::generate_to(Cli::command(), dir)
        .with_context(|| format!("cannot write into {}: choose a writable directory", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_that_names_its_options() {
        let dir = tempfile::tempdir().unwrap();
        man(dir.path()).unwrap();
        for command in Cli::command().get_subcommands() {
            let page = std::fs::read_to_string(dir.path().join(format!("sluice-{}.1", command.get_name())));
            let page = page.unwrap_or_else(|error| panic!("{}: {error}", command.get_name()));
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let long = arg.get_long().unwrap_or_default().replace('-', "\\-");
                assert!(page.contains(&long), "{}: no {long}", command.get_name());
            }
        }
        assert!(dir.path().join("sluice-layout-recall.1").exists());
    }

    #[test]
    fn every_command_that_answers_has_json() {
        fn lacking(command: &clap::Command, path: &str, found: &mut Vec<String>) {
            let name = format!("{path}{}", command.get_name());
            let json = command.get_arguments().any(|arg| arg.get_long() == Some("json"));
            // `ds` is a server by itself and has commands, too.
            if !json && !command.is_subcommand_required_set() && !command.is_hide_set() {
                found.push(name.clone());
            }
            for below in command.get_subcommands() {
                lacking(below, &format!("{name} "), found);
            }
        }
        let mut found = Vec::new();
        Cli::command().get_subcommands().for_each(|command| lacking(command, "", &mut found));
        // Servers, what is no answer but a file, and a probe, which answers by its exit code.
        assert_eq!(found, ["up", "mds", "ds", "ds ready", "completions", "man"]);
    }

    #[test]
    fn the_shells_know_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "sluice", &mut script);
            let script = String::from_utf8(script).unwrap();
            for word in ["completions", "evict", "root-squash"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn the_definitions_hold_together() {
        Cli::command().debug_assert();
    }
}
