//! `sluice-xdr-gen [SPEC…]`: regenerates the modules of `sluice-xdr` (those that use the named
//! descriptions, or all).

use std::path::Path;
use std::process::ExitCode;

use sluice_xdr_gen::{GenError, MODULES, generate};

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    match run(&wanted) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr, reason = "a command line tool")]
fn report(error: &GenError) {
    eprintln!("{error}");
}

fn run(wanted: &[String]) -> Result<(), GenError> {
    let xdr = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for module in MODULES {
        let named = module.outputs.iter().any(|o| wanted.iter().any(|w| w == o.spec));
        if !wanted.is_empty() && !named {
            continue;
        }
        for file in generate(module, &xdr.join("spec"))? {
            let path = xdr.join("src").join(&file.path);
            std::fs::write(&path, file.text)
                .map_err(|e| GenError::Io(path.display().to_string(), e.to_string()))?;
        }
    }
    Ok(())
}
