//! The steps of a publication, done after a kill and beside other programs.

use super::*;
use crate::write::folder::tests::names;

fn write(root: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        fs::create_dir_all(folder_of(&root.join(path))).unwrap();
        fs::write(root.join(path), text).unwrap();
    }
}

/// A hidden folder with two staged files, and a target with two old ones and one of others.
fn folders() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let (outer, target) = (root.path().join("outer"), root.path().join("target"));
    write(&staged(&outer), &[("new", "new"), ("sub/index", "new")]);
    write(&target, &[("old", "old"), ("sub/index", "old"), ("others", "others")]);
    (root, outer, target)
}

/// Steps that move both files, and remove the old one.
fn steps(outer: &Path, target: &Path, overwrite: bool) -> Publication {
    let add = ["new", "sub/index"].map(str::to_owned).to_vec();
    let remove = if overwrite { vec!["old".to_owned()] } else { Vec::new() };
    Publication {
        folder: None,
        overwrite,
        sync: false,
        add: with_inodes(&staged(outer), add).unwrap(),
        edits: BTreeSet::new(),
        remove: with_inodes(target, remove).unwrap(),
    }
}

#[test]
fn files_are_moved_by_the_next_run_whatever_was_moved_before() {
    for done in 0..=3 {
        let (_root, outer, target) = folders();
        let steps = steps(&outer, &target, true);
        assert!(!Publication::finish(&outer, &target).unwrap());
        steps.note(&outer).unwrap();
        assert_eq!(Publication::noted(&outer), Some(steps));
        for path in ["new", "sub/index"].iter().take(done) {
            fs::rename(staged(&outer).join(path), target.join(path)).unwrap();
        }
        if done == 3 {
            fs::remove_file(target.join("old")).unwrap();
        }
        assert!(Publication::finish(&outer, &target).unwrap());
        assert_eq!(names(&target), ["new", "others", "sub"], "{done}");
        assert_eq!(fs::read_to_string(target.join("sub/index")).unwrap(), "new");
        assert_eq!(Publication::noted(&outer), None);
    }
}

#[test]
fn an_old_file_that_somebody_has_replaced_is_kept() {
    let (_root, outer, target) = folders();
    let steps = steps(&outer, &target, true);
    write(&target, &[("later", "later")]);
    fs::rename(target.join("later"), target.join("old")).unwrap();
    steps.move_files(&outer, &target).unwrap();
    assert_eq!(names(&target), ["new", "old", "others", "sub"]);
}

#[test]
fn without_overwriting_a_taken_name_moves_the_others_back() {
    let (_root, outer, target) = folders();
    let steps = steps(&outer, &target, false);
    steps.note(&outer).unwrap();
    let error = steps.move_files(&outer, &target).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!((names(&target), names(&staged(&outer))), as_before());
}

#[test]
fn edits_are_moved_last_and_replace_files_without_overwriting() {
    let (_root, outer, target) = folders();
    let edits = BTreeSet::from(["new".to_owned()]);
    let steps = Publication { edits, ..steps(&outer, &target, false) };
    write(&target, &[("new", "before")]);
    steps.note(&outer).unwrap();
    assert_eq!(Publication::noted(&outer).as_ref(), Some(&steps));
    // `sub/index` is of others.
    assert!(!Publication::finish(&outer, &target).unwrap());
    assert_eq!(fs::read_to_string(target.join("new")).unwrap(), "before");
    fs::remove_file(target.join("sub/index")).unwrap();
    // A file that was changed after a run was killed is not the one to edit.
    steps.note(&outer).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    write(&target, &[("new", "changed")]);
    assert!(!Publication::finish(&outer, &target).unwrap());
    assert_eq!(fs::read_to_string(target.join("new")).unwrap(), "changed");
    std::thread::sleep(std::time::Duration::from_millis(20));
    steps.note(&outer).unwrap();
    assert!(Publication::finish(&outer, &target).unwrap());
    assert_eq!(fs::read_to_string(target.join("new")).unwrap(), "new");
}

/// The names in both folders before anything was moved.
fn as_before() -> (Vec<String>, Vec<String>) {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    (names(&["old", "others", "sub"]), names(&["new", "sub"]))
}

#[test]
fn the_next_run_keeps_what_others_have_made_after_a_kill() {
    // Moved in one step, or by a link whose other name was not yet removed, as Windows never does.
    for by_link in [false, true].into_iter().take(if cfg!(unix) { 2 } else { 1 }) {
        let (_root, outer, target) = folders();
        steps(&outer, &target, false).note(&outer).unwrap();
        let (from, to) = (staged(&outer).join("new"), target.join("new"));
        if by_link {
            fs::hard_link(from, to).unwrap()
        } else {
            fs::rename(from, to).unwrap()
        };
        // `sub/index` is of others.
        assert!(!Publication::finish(&outer, &target).unwrap());
        assert_eq!((names(&target), names(&staged(&outer))), as_before());
        assert_eq!(fs::read_to_string(target.join("sub/index")).unwrap(), "old");
        assert_eq!(Publication::noted(&outer), None);
        fs::remove_file(target.join("sub/index")).unwrap();
        steps(&outer, &target, false).note(&outer).unwrap();
        assert!(Publication::finish(&outer, &target).unwrap(), "the names are free");
        assert_eq!(fs::read_to_string(target.join("sub/index")).unwrap(), "new");
    }
}

#[test]
fn what_others_have_made_of_a_moved_file_is_not_moved_back() {
    for in_place in [false, true] {
        let (_root, outer, target) = folders();
        steps(&outer, &target, false).note(&outer).unwrap();
        let moved = target.join("new");
        fs::rename(staged(&outer).join("new"), &moved).unwrap();
        if !in_place {
            fs::remove_file(&moved).unwrap();
        }
        fs::write(&moved, "theirs").unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(1);
        fs::File::options().append(true).open(&moved).unwrap().set_modified(later).unwrap();
        assert!(!Publication::finish(&outer, &target).unwrap());
        assert_eq!(fs::read_to_string(&moved).unwrap(), "theirs");
    }
}

// Windows exchanges no names.
#[cfg(unix)]
#[test]
fn an_exchanged_folder_is_emptied_and_what_is_new_in_it_moves_over() {
    for killed in [false, true] {
        let (_root, outer, target) = folders();
        let remove = with_inodes(&target, ["old", "sub/index"].map(str::to_owned).to_vec()).unwrap();
        fs::hard_link(target.join("others"), staged(&outer).join("others")).unwrap();
        let folder = Some(identity(&staged(&outer)).unwrap());
        let steps = Publication { folder, remove, ..steps(&outer, &target, true) };
        steps.note(&outer).unwrap();
        assert!(!Publication::finish(&outer, &target).unwrap(), "not yet exchanged");
        steps.note(&outer).unwrap();
        // Of others, in the last instant: new ones, a newer version, and one with the name of a new file.
        write(
            &target,
            &[("sub/late", "late"), ("deep/er/late", "late"), ("later", "later"), ("new", "theirs")],
        );
        fs::rename(target.join("later"), target.join("others")).unwrap();
        sys::exchange(&staged(&outer), &target).unwrap();
        match killed {
            true => assert!(Publication::finish(&outer, &target).unwrap()),
            false => steps.empty_old(&staged(&outer), &target).unwrap(),
        }
        assert!(!staged(&outer).exists());
        let kept = names(&target).into_iter().filter(|name| name.ends_with(".kept")).collect::<Vec<_>>();
        assert_eq!(kept.len(), 1);
        let read = |path: &str| fs::read_to_string(target.join(path)).unwrap();
        assert_eq!([read("new"), read(&kept[0]), read("others")], ["new", "theirs", "later"]);
        assert_eq!([read("sub/late"), read("deep/er/late"), read("sub/index")], ["late", "late", "new"]);
        assert!(!target.join("old").exists());
    }
}

// Windows exchanges no names.
#[cfg(unix)]
#[test]
fn an_old_folder_is_not_resumed_where_the_new_one_was_removed() {
    let (_root, outer, target) = folders();
    let folder = Some(identity(&staged(&outer)).unwrap());
    let steps = Publication { folder, ..steps(&outer, &target, true) };
    steps.note(&outer).unwrap();
    sys::exchange(&staged(&outer), &target).unwrap();
    fs::remove_dir_all(&target).unwrap();
    assert!(Publication::finish(&outer, &target).unwrap());
    assert!(!staged(&outer).exists(), "before the note is removed");
}

#[test]
fn a_part_of_a_version_is_not_published_where_the_rest_was_removed() {
    for removes_all in [false, true] {
        let (_root, outer, target) = folders();
        steps(&outer, &target, true).note(&outer).unwrap();
        fs::rename(staged(&outer).join("new"), target.join("new")).unwrap();
        if removes_all {
            fs::remove_dir_all(&target).unwrap();
        } else {
            fs::remove_file(target.join("new")).unwrap();
        }
        assert!(Publication::finish(&outer, &target).unwrap());
        assert_eq!(target.exists(), !removes_all);
        assert!(removes_all || fs::read_to_string(target.join("sub/index")).unwrap() == "old");
        assert_eq!(Publication::noted(&outer), None);
    }
}
