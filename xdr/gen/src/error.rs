//! What is wrong with a description, and where.

use thiserror::Error;

/// A description that cannot be turned into Rust.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GenError {
    /// The text is not XDR.
    #[error("{file}:{line}: {message}")]
    Syntax {
        /// Name of the description.
        file: String,
        /// Line, from 1.
        line: usize,
        /// What was found and what would have been right.
        message: String,
    },
    /// A name that nothing defines.
    #[error("{0} is not defined")]
    Undefined(String),
    /// A name defined more than once.
    #[error("{0} is defined twice")]
    Duplicate(String),
    /// Valid XDR that has no Rust form here.
    #[error("{0}")]
    Unsupported(String),
    /// rustfmt could not be run or refused the output.
    #[error("rustfmt: {0}")]
    Format(String),
    /// A file could not be read or written.
    #[error("{0}: {1}")]
    Io(String, String),
}
