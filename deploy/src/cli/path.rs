//! Paths that commands are given.

/// A file or directory of the file system. What a script has not set is not the root.
pub(crate) fn path(given: &str) -> Result<String, String> {
    if given.is_empty() {
        return Err("an empty path is no file; the root is /".to_owned());
    }
    Ok(given.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::Cli;

    #[test]
    fn what_a_script_has_not_set_is_not_the_root() {
        for line in [
            "policy PATH small",
            "why PATH",
            "export add PATH --client any",
            "export set PATH --read-only",
            "export remove PATH",
            "quota set --tree PATH --files 10",
            "quota show --path PATH",
            "mirror set 2 PATH",
            "mirror compare PATH",
            "mirror mend PATH --zeros",
            "layout show PATH",
            "layout recall PATH",
            "lock list PATH",
            "lock break PATH",
        ] {
            let given = |path: &'static str| {
                let words = line.split(' ').map(move |word| if word == "PATH" { path } else { word });
                Cli::try_parse_from(["sluice"].into_iter().chain(words))
            };
            assert!(given("/").is_ok(), "{line}: {:?}", given("/").map(drop));
            let refused = given("").map(drop).unwrap_err().to_string();
            assert!(refused.contains("an empty path is no file; the root is /"), "{line}: {refused}");
        }
    }
}
