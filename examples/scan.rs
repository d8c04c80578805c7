//! Says what files would do in a reader that unpickles them, and runs nothing: `cargo run --example scan model.pt`.
//!
//! Ends with exit code 1 unless all files are inert.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use rustload::scan::{self, Verdict};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let report = scan::scan(&paths, &scan::Options::new())?;
    for file in &report.files {
        let name = file.path.as_deref().unwrap_or("memory");
        println!("{}: {}", name.escape_debug(), file.verdict().as_str());
        for finding in &file.findings {
            println!("  {}: {}", finding.code, finding.message.escape_debug());
        }
    }
    let inert = report.verdict() == Verdict::Inert;
    Ok(if inert { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
