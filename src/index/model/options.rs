//! How to open a checkpoint.

use crate::builder::setters;
use crate::bytes::Io;
use crate::limits::Limits;
use crate::parallel::Cancel;

/// How to treat a value of an unknown class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unknown {
    /// Keep it as inert data.
    #[default]
    Keep,
    /// Fail with an error.
    Error,
}

/// How to open a checkpoint.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Bounds on memory and work that the file can cause.
    pub limits: Limits,
    /// How to treat values of unknown classes.
    pub unknown: Unknown,
    /// Whether to ignore bytes after the end of an archive or a pickle.
    pub ignore_trailing: bool,
    /// Whether the last of duplicate keys in a safetensors header is used, as in the reference reader, instead of an error.
    pub compat: bool,
    /// Whether to verify the checksum of every storage at opening.
    pub verify: bool,
    /// Whether quantized weights are the numbers that they mean, under the names of the weights, instead of their codes and scales.
    pub dequantize: bool,
    /// How tensor data is read.
    pub io: Io,
    /// Cancels the opening.
    pub cancel: Cancel,
}

impl Options {
    /// The defaults: unknown classes are kept as inert data, trailing bytes are an error, checksums are not verified.
    pub fn new() -> Options {
        Options::default()
    }

    setters! {
        limits: Limits,
        unknown: Unknown,
        ignore_trailing: bool,
        compat: bool,
        verify: bool,
        dequantize: bool,
        io: Io,
        cancel: Cancel,
    }
}
