//! What a scan of a directory leaves out: names, in which `*` stands for any characters, and paths.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::policy::matches;

/// Names and paths, and for each whether it was found.
#[derive(Debug, Default)]
pub(super) struct Exclude(Vec<(String, AtomicBool)>);

impl Exclude {
    pub(super) fn new(texts: Vec<String>) -> Exclude {
        Exclude(texts.into_iter().map(|text| (text, AtomicBool::new(false))).collect())
    }

    /// Whether it has the file or directory at `path`, which is found in the directory `root`.
    pub(super) fn has(&self, root: &Path, path: &Path) -> bool {
        // All that have it were found.
        let mut has = false;
        for (text, found) in &self.0 {
            if is_met(text, root, path) {
                found.store(true, Ordering::Relaxed);
                has = true;
            }
        }
        has
    }

    /// Those that were not found.
    pub(super) fn not_found(&self) -> Vec<String> {
        let is_left =
            |(text, found): &(String, AtomicBool)| (!found.load(Ordering::Relaxed)).then(|| text.clone());
        self.0.iter().filter_map(is_left).collect()
    }
}

/// Whether a name is that of the last part of a path; or a path, as it is or from `root`.
fn is_met(text: &str, root: &Path, path: &Path) -> bool {
    let text = plain(text);
    let meets = |path: &str| matches(text.as_bytes(), plain(path).as_bytes());
    if !text.contains('/') {
        return path.file_name().is_some_and(|name| meets(&name.to_string_lossy()));
    }
    meets(&slashed(path)) || path.strip_prefix(root).is_ok_and(|inner| meets(&slashed(inner)))
}

fn slashed(path: &Path) -> String {
    let text = path.to_string_lossy().into_owned();
    if cfg!(windows) { text.replace('\\', "/") } else { text }
}

/// A path without a `./` in front and a `/` at its end.
fn plain(mut text: &str) -> &str {
    while let Some(rest) = text.strip_prefix("./") {
        text = rest;
    }
    text.trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_patterns_and_paths_are_found() {
        for (text, path, expected) in [
            ("sub", "art/sub", true),
            ("sub", "art/subs", false),
            ("sub/", "art/sub", true),
            ("s*", "art/deep/sub", true),
            ("*.bin", "art/a.bin", true),
            ("art", "art/a.bin", false),
            ("art/sub", "art/sub", true),
            ("./art/sub/", "art/sub", true),
            ("sub/a.bin", "art/sub/a.bin", true),
            ("./sub", "art/deep/sub", true),
            ("deep/s*", "art/deep/sub/a", true),
            ("sub/a.bin", "art/deep/sub/a.bin", false),
            ("/", "art/sub", false),
            ("", "art/sub", false),
        ] {
            let exclude = Exclude::new(vec![text.to_owned()]);
            assert_eq!(exclude.has(Path::new("art"), Path::new(path)), expected, "{text} {path}");
            assert_eq!(exclude.not_found().is_empty(), expected);
        }
    }
}
