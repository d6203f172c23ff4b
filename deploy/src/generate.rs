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
