//! Configuration files. A key of section `[mds]` or `[ds]` is a long option of that command without its dashes;
//! what it means, what it may be and its default are said once, in `cli`. The command line wins.

use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, Parser};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::cli::{self, Cli};
use crate::{ds, mds};

/// Commands that read a configuration file, which are also the sections of one.
const ROLES: [&str; 2] = ["mds", "ds"];
/// Options that are no settings: where the file is; and `new`, which is done once: left in a file it would make
/// an empty store where a device is not mounted.
const NOT_KEYS: [&str; 2] = ["config", "new"];
/// How alike two words are that may be meant for each other; what clap takes for its own suggestions.
const ALIKE: f64 = 0.7;

/// The command line, completed by the file that it names.
///
/// # Errors
/// One line about the file. Errors of the command line itself, `--help` and `--version` end the process.
pub(crate) fn parse(mut line: Vec<OsString>) -> Result<Cli> {
    if let Ok(given) = lenient().try_get_matches_from(&line)
        && let Some((role, given)) = given.subcommand()
        && ROLES.contains(&role)
        && let given = added(given)
        && let Some(file) = given.get_one::<std::path::PathBuf>("config")
    {
        line.extend(completion(role, given, file)?);
    }
    line.extend(of_environment(&line, |name| std::env::var_os(name)));
    Ok(Cli::parse_from(line))
}

/// Where the metadata server is and the key for it, for commands that ask it and were not told. Not by clap's own means: a
/// variable would stand against --data-dir as if it had been given, and change what servers do.
fn of_environment(line: &[OsString], variable: impl Fn(&str) -> Option<OsString>) -> Vec<OsString> {
    let (program, Ok(given)) = (lenient(), lenient().try_get_matches_from(line)) else { return Vec::new() };
    let (mut command, mut given) = (&program, &given);
    while let Some((name, below)) = given.subcommand()
        && let Some(found) = command.find_subcommand(name)
    {
        (command, given) = (found, below);
    }
    let option = |long: &str| command.get_arguments().find(|arg| arg.get_long() == Some(long));
    let by_hand = |long: &str| {
        option(long)
            .is_some_and(|arg| given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine))
    };
    // Servers have `listen`, and go by their own options; `--file` is a dump, and nobody is asked.
    let asks = ["mds", "key", "data-dir"].into_iter().all(|long| option(long).is_some());
    if !asks || option("listen").is_some() || by_hand("data-dir") || by_hand("file") {
        return Vec::new();
    }
    let value = |name: &str| variable(name).filter(|value| !value.is_empty());
    let mds = value("SLUICE_MDS").filter(|_| !by_hand("mds"));
    if mds.is_none() && !by_hand("mds") {
        return Vec::new();
    }
    let key = value("SLUICE_KEY").filter(|_| !by_hand("key"));
    let all = [("--mds", mds), ("--key", key)].into_iter();
    all.flat_map(|(option, value)| value.map(|value| [option.into(), value])).flatten().collect()
}

/// What was given to `ds add`, which takes the options of `ds`; else to the command itself.
fn added(given: &ArgMatches) -> &ArgMatches {
    match given.subcommand() {
        Some(("add", added)) => added,
        _ => given,
    }
}

/// `sluice config check FILE`.
pub(crate) fn check(file: &Path, as_json: bool) -> Result<()> {
    let mut good = Vec::new();
    let text = read(file)?;
    let sections = sections(file, &text)?;
    if sections.is_empty() {
        bail!("{} has no section: begin it with [mds] or [ds]", file.display());
    }
    for section in sections {
        let role = section.role;
        let line = ["sluice", role, "--config"].map(OsString::from);
        let line = line.into_iter().chain([file.as_os_str().to_owned()]).collect();
        match parse(line)?.command {
            cli::Command::Mds(options) => mds::check(&options),
            cli::Command::Ds(cli::Ds::Run(options)) => ds::check(&options.serve),
            _ => Ok(()),
        }
        .with_context(|| format!("{} [{role}]", file.display()))?;
        if !as_json {
            say!("{}: [{role}] is good: sluice {role} --config {}", file.display(), file.display());
        }
        good.push(role);
    }
    if as_json {
        say!("{}", serde_json::json!({ "file": file, "good": good }));
    }
    Ok(())
}

/// The program's commands with nothing required: the file may have it.
fn lenient() -> Command {
    let optional = |command: Command| command.mut_args(|arg| arg.required(false));
    Cli::command().mut_subcommands(|command| optional(command).mut_subcommands(optional))
}

/// What `file` adds to the options that were given to `role`.
fn completion(role: &str, given: &ArgMatches, file: &Path) -> Result<Vec<OsString>> {
    let text = read(file)?;
    let Some(section) = sections(file, &text)?.into_iter().find(|section| section.role == role) else {
        bail!("{} has no section [{role}]", file.display());
    };
    let by_hand = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
    let command = command_of(role);
    for arg in command.get_arguments().filter(|arg| arg.is_required_set()) {
        let key = arg.get_long().unwrap_or_default();
        if !by_hand(arg.get_id().as_str()) && section.settings.iter().all(|setting| setting.key != key) {
            bail!("{} has no `{key}` in section [{role}]: add it, or give --{key}", file.display());
        }
    }
    Ok(section
        .settings
        .into_iter()
        .filter(|setting| !by_hand(&setting.id))
        .map(|setting| setting.argument)
        .collect())
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// One key and its value.
struct Setting {
    key: String,
    /// clap's name of the option.
    id: String,
    /// `--key=value`.
    argument: OsString,
}

struct Section {
    role: &'static str,
    settings: Vec<Setting>,
}

/// A file being read, for error messages.
struct Source<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn at(&self, span: Range<usize>, what: &str) -> anyhow::Error {
        let before = self.text.get(..span.start).unwrap_or_default();
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        anyhow!("{} line {line}: {what}", self.file.display())
    }
}

/// Reads and checks every section.
fn sections(file: &Path, text: &str) -> Result<Vec<Section>> {
    let source = Source { file, text };
    let table = DeTable::parse(text).map_err(|error| {
        // The library's words may be several lines, with the line of the file drawn.
        let what = error.message().lines().collect::<Vec<_>>().join(", ");
        source.at(error.span().unwrap_or_default(), &what)
    })?;
    let mut found = Vec::new();
    for (name, value) in table.get_ref() {
        let at = |what: &str| source.at(name.span(), what);
        let name = name.get_ref().as_ref();
        let Some(keys) = value.get_ref().as_table() else {
            return Err(at(&format!("`{name}` stands before any section: put [mds] or [ds] above it")));
        };
        let Some(role) = ROLES.into_iter().find(|role| *role == name) else {
            return Err(at(&format!("there is no section [{name}]: [mds] or [ds]")));
        };
        let command = command_of(role);
        let settings = keys.iter().map(|(key, value)| setting(&source, &command, key, value));
        found.push(Section { role, settings: settings.collect::<Result<_>>()? });
    }
    Ok(found)
}

fn command_of(role: &str) -> Command {
    Cli::command().find_subcommand(role).cloned().unwrap_or_default()
}

/// The options of a command that may stand in a file.
fn keys(command: &Command) -> impl Iterator<Item = &Arg> {
    command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && arg.get_long().is_some_and(|long| !NOT_KEYS.contains(&long)))
}

fn setting(
    source: &Source<'_>,
    command: &Command,
    key: &Spanned<std::borrow::Cow<'_, str>>,
    value: &Spanned<DeValue<'_>>,
) -> Result<Setting> {
    let name = key.get_ref().as_ref();
    let Some(arg) = keys(command).find(|arg| arg.get_long() == Some(name)) else {
        return Err(source.at(key.span(), &unknown(command, name)));
    };
    let words =
        words(arg, value.get_ref()).map_err(|what| source.at(value.span(), &format!("`{name}` {what}")))?;
    let argument = OsString::from(format!("--{name}={words}"));
    let role = OsString::from(command.get_name());
    if let Err(error) = lenient().try_get_matches_from([OsString::from("sluice"), role, argument.clone()]) {
        // Up to the usage: what is wrong, and the values there are.
        let error = error.to_string();
        let lines: Vec<&str> = error.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
        return Err(source.at(value.span(), lines.join(" ").trim_start_matches("error: ")));
    }
    Ok(Setting { key: name.to_owned(), id: arg.get_id().as_str().to_owned(), argument })
}

fn unknown(command: &Command, name: &str) -> String {
    if NOT_KEYS.contains(&name) {
        return format!("`{name}` is given on the command line only");
    }
    let alike = |key: &str| strsim::jaro_winkler(key, &name.replace('_', "-"));
    let nearest = keys(command).filter_map(Arg::get_long).max_by(|a, b| alike(a).total_cmp(&alike(b)));
    match nearest.filter(|key| alike(key) > ALIKE) {
        Some(key) => format!("unknown key `{name}`: did you mean `{key}`?"),
        None => {
            let all: Vec<&str> = keys(command).filter_map(Arg::get_long).collect();
            format!("unknown key `{name}`: there are {}", all.join(", "))
        }
    }
}

/// A value as the command line would have it, or what is wrong with it.
fn words(arg: &Arg, value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.clone().into_owned()),
        DeValue::Boolean(value) => Ok(value.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map(|number| number.to_string())
            .map_err(|_| "is too large a number".to_owned()),
        DeValue::Array(items) => {
            let Some(delimiter) = arg.get_value_delimiter() else {
                return Err("takes one value, not a list".to_owned());
            };
            let items = items.iter().map(|item| words(arg, item.get_ref()));
            Ok(items.collect::<Result<Vec<_>, _>>()?.join(&delimiter.to_string()))
        }
        other => Err(format!("cannot be a {}", other.type_str())),
    }
}

#[cfg(test)]
mod tests {
    use sluice_namespace::LayoutPolicy;

    use super::*;

    fn complete(role: &str, text: &str, line: &[&str]) -> Result<Cli, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        fs::write(&file, text).unwrap();
        let mut all: Vec<OsString> = ["sluice", role].map(OsString::from).to_vec();
        all.extend(line.iter().map(OsString::from));
        all.push(OsString::from(format!("--config={}", file.display())));
        parse(all).map_err(|error| {
            let error = format!("{error:#}");
            error.replace(&file.display().to_string(), "FILE")
        })
    }

    fn mds(text: &str, line: &[&str]) -> cli::Mds {
        match complete("mds", text, line).unwrap().command {
            cli::Command::Mds(options) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_sets_what_the_command_line_leaves() {
        let text = "[mds]\ndata-dir = \"/srv\"\nlisten = \"10.0.0.1:2049\"\nlease = 90\nroot-squash = true\n";
        let options = mds(text, &[]);
        assert_eq!(options.data_dir, Path::new("/srv"));
        assert_eq!(options.listen.to_string(), "10.0.0.1:2049");
        assert_eq!((options.tuning.lease, options.tuning.root_squash), (90, true));
        assert_eq!(options.tuning.rebuild_after, 600, "a default is still a default");
        let options = mds(text, &["--lease", "30", "--root-squash=false"]);
        assert_eq!((options.tuning.lease, options.tuning.root_squash), (30, false));
        assert_eq!(options.listen.to_string(), "10.0.0.1:2049");
        assert!(mds(text, &["--no-layouts"]).tuning.no_layouts);
        let inline = |line: &[&str]| mds(text, line).tuning.inline;
        let limits = [inline(&[]), inline(&["--inline", "16KiB"]), inline(&["--inline", "off"])];
        assert_eq!(limits, [LayoutPolicy::OF_NEW_FILE_SYSTEMS.inline, 16 << 10, 0]);
    }

    #[test]
    fn commands_ask_whom_the_environment_names_unless_they_are_told() {
        let with = |line: &str, known: &[(&str, &str)]| {
            let line: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let value =
                |name: &str| known.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            of_environment(&line, value)
        };
        let both = [("SLUICE_MDS", "h"), ("SLUICE_KEY", "/k")];
        for line in [
            "sluice status",
            "sluice client list",
            "sluice quota list",
            "sluice meta dump f",
            "sluice policy / wide",
        ] {
            assert_eq!(with(line, &both), ["--mds", "h", "--key", "/k"], "{line}");
            let whole = [line.split(' ').map(OsString::from).collect(), with(line, &both)].concat();
            Cli::try_parse_from(whole).unwrap();
        }
        assert_eq!(with("sluice status --mds other", &both), ["--key", "/k"]);
        assert_eq!(with("sluice status --key /other", &both), ["--mds", "h"]);
        let none: [OsString; 0] = [];
        for line in [
            "sluice status --data-dir /d",
            "sluice meta check --file f",
            "sluice up",
            "sluice mds --data-dir /d",
            "sluice ds --mds a --data-dir /d",
            "sluice ds add --mds a --data-dir /d",
            "sluice key new f",
        ] {
            assert_eq!(with(line, &both), none, "{line}");
        }
        assert_eq!(with("sluice status", &both[1..]), none, "a key alone is for nobody");
    }

    #[test]
    fn lists_are_lists() {
        let text = "[ds]\nmds = \"h\"\ndata-dir = \"/d\"\nadvertise = [\"10.0.0.1:1\", \"10.0.1.1:1\"]\n";
        let cli::Command::Ds(cli::Ds::Run(options)) = complete("ds", text, &[]).unwrap().command else {
            panic!()
        };
        assert_eq!(options.serve.advertise.len(), 2);
    }

    #[test]
    fn a_data_server_is_added_with_the_file_that_it_runs_with() {
        let text = "[ds]\nmds = \"h\"\ndata-dir = \"/d\"\n";
        let added = complete("ds", text, &["add", "--listen=[::]:5"]).unwrap().command;
        let cli::Command::Ds(cli::Ds::Do(cli::DsCommand::Add { serve, .. })) = added else {
            panic!("{added:?}")
        };
        assert_eq!((&serve.mds[..], serve.listen.port()), ("h", 5));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (role, text, want) in [
            ("mds", "[mds]\n\nlisen = 1", "FILE line 3: unknown key `lisen`: did you mean `listen`?"),
            ("mds", "[mds]\ndata_dir = 1", "FILE line 2: unknown key `data_dir`: did you mean `data-dir`?"),
            ("mds", "[mds]\nlease = 1", "FILE line 2: invalid value '1' for '--lease <SECONDS>'"),
            (
                "mds",
                "[mds]\ndelegations = \"no\"",
                "FILE line 2: invalid value 'no' for '--delegations <KIND>' [possible values: off, read, write, times]",
            ),
            ("mds", "[mds]\nlease = [1, 2]", "FILE line 2: `lease` takes one value, not a list"),
            ("mds", "[mds]\nlease = 1.5", "FILE line 2: `lease` cannot be a float"),
            ("mds", "lease = 60", "FILE line 1: `lease` stands before any section"),
            ("mds", "[mds]\nlease = ", "FILE line 2: "),
            ("mds", "[mds]\nlease = 5\nlease = 6", "FILE line 3: duplicate key"),
            ("mds", "[mmds]", "FILE line 1: there is no section [mmds]"),
            ("ds", "[mds]\ndata-dir = \"/x\"", "FILE has no section [ds]"),
            ("ds", "[ds]\ndata-dir = \"/x\"", "FILE has no `mds` in section [ds]: add it, or give --mds"),
            ("ds", "[ds]\nnew = true", "FILE line 2: `new` is given on the command line only"),
            ("ds", "[ds]\nstop-with-stdin = true", "FILE line 2: unknown key `stop-with-stdin`"),
        ] {
            let error = complete(role, text, &[]).expect_err(text);
            assert!(error.starts_with(want) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn what_would_do_nothing_is_found_by_the_check() {
        let dir = tempfile::tempdir().unwrap();
        let (file, key) = (dir.path().join("c.toml"), dir.path().join("k"));
        sluice_rpc::ClusterKey::generate(&sluice_env::Env::system()).write(&key).unwrap();
        let with = |more: &str| {
            let text = format!("[mds]\ndata-dir = \"/d\"\nkey = \"{}\"\n{more}", key.display());
            fs::write(&file, text).unwrap();
            check(&file, true).map_err(|error| format!("{error:#}"))
        };
        with("").unwrap();
        with("store = \"foundationdb\"\nstandby = true\nfdb-name = \"a\"").unwrap();
        for (more, option) in [("standby = true", "--standby"), ("fdb-name = \"a\"", "--fdb-name")] {
            let said = with(more).unwrap_err();
            assert!(
                said.contains(option) && said.contains("FoundationDB") | said.contains("does nothing"),
                "{said}"
            );
        }
    }

    #[test]
    fn certificates_for_a_cluster_are_looked_at_by_the_check() {
        let dir = tempfile::tempdir().unwrap();
        let (file, key) = (dir.path().join("c.toml"), dir.path().join("k"));
        sluice_rpc::ClusterKey::generate(&sluice_env::Env::system()).write(&key).unwrap();
        let text = format!(
            "[mds]\ndata-dir = \"/d\"\nkey = \"{}\"\nstore = \"foundationdb\"\nfdb-tls-certificate = \"/nowhere/fdb.pem\"",
            key.display()
        );
        fs::write(&file, text).unwrap();
        let said = format!("{:#}", check(&file, true).unwrap_err());
        assert!(said.ends_with("cannot use FoundationDB (--store foundationdb): cannot read the certificate for FoundationDB, /nowhere/fdb.pem: No such file or directory (os error 2)"), "{said}");
    }

    /// The files in deploy/config: good as they are, every option is in them, and what is commented out says the
    /// default.
    #[test]
    fn the_files_that_are_shipped_say_everything() {
        for role in ROLES {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("config/{role}.toml"));
            let text = read(&file).unwrap();
            let sections = sections(&file, &text).unwrap();
            assert_eq!(sections.iter().map(|section| section.role).collect::<Vec<_>>(), [role]);
            let command = command_of(role);
            for arg in keys(&command) {
                let key = arg.get_long().unwrap();
                let set = text.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")));
                let unset = text.lines().find_map(|line| line.strip_prefix(&format!("# {key} = ")));
                assert!(set.or(unset).is_some(), "{}: nothing about {key}", file.display());
                assert!(set.is_some() || !arg.is_required_set(), "{}: {key} is required", file.display());
                let default = arg.get_default_values().first().map(|value| value.to_string_lossy());
                if let (Some(text), Some(default)) = (unset, default) {
                    assert_eq!(text.trim_matches('"'), default, "{}: {key}", file.display());
                }
            }
        }
    }
}
