use super::*;

/// The contents of a safetensors file with one tensor of one byte.
fn contents(name: &str) -> Contents {
    let header = format!("{{\"{name}\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}}}");
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), b"\0"].concat();
    index::read(&Source::memory(Arc::new(bytes)), &Options::default()).unwrap()
}

fn labelled(name: &str, label: &str) -> Contents {
    contents(name).labelled(label, &Limits::default()).unwrap()
}

fn open(contents: Contents) -> Result<Opened> {
    let mut opened = Opened::new(Shard::all(None, 0, contents).collect(), Options::default());
    opened.merge(None).map(|()| opened)
}

#[test]
fn checkpoints_inside_a_file_are_shards_of_it() {
    let inner = vec![labelled("w", "a"), labelled("w", "b")];
    let opened = open(Contents { inner, ..contents("w") }).unwrap();
    let names: Vec<&str> = opened.entries.iter().map(|entry| &*entry.name).collect();
    assert_eq!(names, ["w", "a.w", "b.w"]);
    assert_eq!(
        opened.shards.iter().map(|shard| (shard.file, shard.is_inner)).collect::<Vec<_>>(),
        [(0, false), (0, true), (0, true)]
    );
}

#[test]
fn a_name_in_two_checkpoints_of_a_file_is_an_error() {
    let error = open(Contents { inner: vec![contents("w")], ..contents("w") }).unwrap_err();
    assert_eq!(error.code(), Code::ShardDuplicate);
    assert!(error.to_string().contains("two checkpoints of the file"), "{error}");
}

#[test]
fn a_weight_map_assigns_names_to_files() {
    let first = Contents { inner: vec![labelled("w", "a")], ..contents("x") };
    let shards = Shard::all(None, 0, first).chain(Shard::all(None, 1, contents("y")));
    let mut opened = Opened::new(shards.collect(), Options::default());
    let map = [("x", 0), ("a.w", 0), ("y", 1)].map(|(name, file)| (name.to_owned(), file));
    opened.merge(Some(&map.into_iter().collect())).unwrap();
    assert_eq!(opened.entries.len(), 3);
}

#[test]
fn labels_count_against_the_limit_on_names() {
    let limits = Limits { name_bytes_total: 3, ..Limits::default() };
    assert_eq!(contents("w").labelled("long", &limits).unwrap_err().code(), Code::Limit);
}
