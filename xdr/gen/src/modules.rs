//! Which descriptions make which Rust modules.

use crate::ast::{Body, Definition};
use crate::model::External;

/// One generated file and which definitions of its description go there.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// Description under the specification folder.
    pub spec: &'static str,
    /// Rust file under the source folder.
    pub rust: &'static str,
    /// What the file holds, for its first line.
    pub doc: &'static str,
    /// Selects definitions; the first output of a description that selects one has it.
    pub select: fn(&Definition) -> bool,
}

/// A Rust module made of one or more descriptions that share their names.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// The generated files.
    pub outputs: &'static [Output],
    /// Further descriptions whose names may be used; they are generated elsewhere.
    pub imports: &'static [&'static str],
    /// Types written by hand.
    pub externals: &'static [External],
    /// `use` lines that bring the names of other files into scope.
    pub uses: &'static str,
}

const fn all(_: &Definition) -> bool {
    true
}

pub(crate) fn is_number(d: &Definition) -> bool {
    matches!(d.body, Body::Const(_) | Body::Enum(_) | Body::Program(_))
}

fn is_callback(d: &Definition) -> bool {
    d.name.starts_with("CB_") || d.name.contains("_cb_")
}

/// Arguments and results carry their operation's name in capitals.
fn is_operation(d: &Definition) -> bool {
    let capitals = d.name.bytes().take_while(|b| b.is_ascii_uppercase() || *b == b'_').count();
    capitals >= 3 || matches!(d.name.as_str(), "nfs_argop4" | "nfs_resop4")
}

const NFS4_SPECS: &[&str] = &["nfs4.x", "nfs42.x", "xattr.x"];

const FATTR: &[External] = &[
    External { name: "bitmap4", min_size: 4, copy: true },
    External { name: "fattr4", min_size: 8, copy: false },
];

/// Everything there is to generate.
pub const MODULES: &[Module] = &[
    Module {
        outputs: &[Output { spec: "rpc.x", rust: "rpc.rs", doc: "ONC RPC messages (RFC 5531)", select: all }],
        imports: &[],
        externals: &[],
        uses: "",
    },
    Module {
        outputs: &[Output { spec: "nfs3.x", rust: "nfs3.rs", doc: "NFS version 3 (RFC 1813)", select: all }],
        imports: &[],
        externals: &[],
        uses: "",
    },
    Module {
        outputs: &[
            Output {
                spec: "nfs4.x",
                rust: "nfs4/numbers.rs",
                doc: "Constants and enums of NFSv4 (RFC 8881, 7862, 8276)",
                select: is_number,
            },
            Output {
                spec: "nfs4.x",
                rust: "nfs4/cb.rs",
                doc: "Callback operations (RFC 8881 §20)",
                select: is_callback,
            },
            Output {
                spec: "nfs4.x",
                rust: "nfs4/ops.rs",
                doc: "Arguments and results of operations (RFC 8881 §16, §18)",
                select: is_operation,
            },
            Output { spec: "nfs4.x", rust: "nfs4/types.rs", doc: "Basic types (RFC 8881 §3)", select: all },
            Output { spec: "nfs42.x", rust: "nfs4/v42.rs", doc: "NFSv4.2 (RFC 7862)", select: all },
            Output {
                spec: "xattr.x",
                rust: "nfs4/xattr.rs",
                doc: "Extended attributes (RFC 8276)",
                select: all,
            },
        ],
        imports: &[],
        externals: FATTR,
        uses: "use super::*;",
    },
    Module {
        outputs: &[Output {
            spec: "flexfiles.x",
            rust: "flexfiles.rs",
            doc: "The flexible file layout type (RFC 8435)",
            select: all,
        }],
        imports: NFS4_SPECS,
        externals: FATTR,
        uses: "use crate::nfs4::*;",
    },
    Module {
        outputs: &[Output {
            spec: "control.x",
            rust: "control.rs",
            doc: "The control protocol between metadata server, data servers and administrator",
            select: all,
        }],
        imports: &[],
        externals: &[],
        uses: "",
    },
    Module {
        outputs: &[Output {
            spec: "sink.x",
            rust: "sink.rs",
            doc: "Every construct of the language, for tests",
            select: all,
        }],
        imports: &[],
        externals: &[],
        uses: "",
    },
];
