//! What is committed under `xdr/src` is what the descriptions say.

use std::path::Path;

use sluice_xdr_gen::{MODULES, generate};

#[test]
fn committed_modules_are_up_to_date() {
    let xdr = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = 0;
    for module in MODULES {
        for file in generate(module, &xdr.join("spec")).unwrap() {
            let committed = std::fs::read_to_string(xdr.join("src").join(&file.path)).unwrap_or_default();
            assert!(committed == file.text, "{} is stale: run `cargo run -p sluice-xdr-gen`", file.path);
            files += 1;
        }
    }
    assert!(files >= 11, "only {files} files");
}

#[test]
fn generation_is_deterministic() {
    let specs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spec");
    let module = &MODULES[0];
    assert_eq!(generate(module, &specs), generate(module, &specs));
}
