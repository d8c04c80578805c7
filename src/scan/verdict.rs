//! What a scan says of a file.

/// What a file would do in a reader that executes pickles. Ordered: the worst verdict is the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It only creates data: all of it was scanned, and every call is known.
    Inert,
    /// It imports unknown classes or functions, or readers interpret it differently, or not all of it could be scanned.
    Unknown,
    /// It calls something that runs code or accesses the system.
    WouldExecute,
}

impl Verdict {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Inert => "inert",
            Verdict::Unknown => "unknown",
            Verdict::WouldExecute => "would execute",
        }
    }

    /// The level in SARIF.
    pub(super) fn severity(self) -> &'static str {
        match self {
            Verdict::Inert => "note",
            Verdict::Unknown => "warning",
            Verdict::WouldExecute => "error",
        }
    }
}
