//! Tests of the files that a path resolves to.

use std::fs;

use super::*;

/// A directory with these files; an index's content follows its name after `=`.
fn directory(files: &[&str]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for file in files {
        let (name, content) = file.split_once('=').unwrap_or((file, "x"));
        fs::write(directory.path().join(name), content).unwrap();
    }
    directory
}

fn resolve_one(path: &Path) -> Result<Shards> {
    resolve(&[path.to_owned()], &Limits::default())
}

/// The names of the files picked from a directory of these files.
fn picked(files: &[&str]) -> Result<Vec<String>> {
    let directory = directory(files);
    let names = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    Ok(resolve_one(directory.path())?.files.iter().map(names).collect())
}

#[test]
fn a_file_resolves_to_itself_and_a_list_keeps_its_order() {
    let directory = directory(&["a.bin", "b.bin"]);
    let [a, b] = ["a.bin", "b.bin"].map(|name| directory.path().join(name));
    assert_eq!(resolve_one(&a).unwrap().files, std::slice::from_ref(&a));
    assert_eq!(resolve(&[b.clone(), a.clone()], &Limits::default()).unwrap().files, [b, a.clone()]);
    let with_directory = [a, directory.path().to_owned()];
    assert_eq!(resolve(&with_directory, &Limits::default()).unwrap_err().code(), Code::Value);
    assert_eq!(resolve(&[], &Limits::default()).unwrap_err().code(), Code::Value);
    assert_eq!(resolve_one(Path::new("/nonexistent/x.pt")).unwrap_err().code(), Code::Io);
}

#[test]
fn the_file_of_a_distributed_checkpoint_is_its_metadata() {
    let files = [".metadata", "__0_0.distcp", "__1_0.distcp"];
    assert_eq!(picked(&files).unwrap(), [".metadata"]);
    assert_eq!(picked(&[".metadata", "__0_0.distcp", "common.pt"]).unwrap(), [".metadata"]);
    assert_eq!(picked(&[".metadata", "__0_0.distcp", "optimizer.bin"]).unwrap(), [".metadata"]);
    assert_eq!(picked(&[".metadata"]).unwrap(), [".metadata"]);
    assert_eq!(picked(&[".metadata", "model.pt"]).unwrap(), ["model.pt"]);
    let directory = directory(&files);
    let part = |name: &str| directory.path().join(name);
    let several = [part("__0_0.distcp"), part("__1_0.distcp")];
    for given in [&several[..1], &several] {
        let error = resolve(given, &Limits::default()).unwrap_err();
        assert_eq!(error.code(), Code::UnknownFormat);
        assert!(error.message().contains("distributed checkpoint"));
        assert!(error.next_step().unwrap().contains(&directory.path().display().to_string()));
    }
    assert_eq!(resolve_one(&part(".metadata")).unwrap().files, [part(".metadata")]);
    let code = |files: &[&str]| picked(files).unwrap_err().code();
    assert_eq!(code(&["__0_0.distcp", ".metadata.tmp"]), Code::DcpUnfinished);
    assert_eq!(code(&["__0_0.distcp"]), Code::DcpUnfinished);
    assert_eq!(code(&["__0_0.distcp", "__1_0.distcp", "__0.metadata", "__1.metadata"]), Code::DcpRankLocal);
    // Weights beside the distributed files take precedence.
    assert_eq!(picked(&[".metadata", "__0_0.distcp", "model.safetensors"]).unwrap(), ["model.safetensors"]);
}

#[test]
fn the_metadata_of_torch_checkpointing_is_known_by_its_content() {
    let metadata = "metadata.pkl=\u{80}metadata world_size";
    assert_eq!(picked(&[metadata, "a.safetensors", "model_0.pt"]).unwrap(), ["metadata.pkl"]);
    assert_eq!(picked(&["metadata.pkl", "a.safetensors"]).unwrap(), ["a.safetensors"]);
    assert_eq!(picked(&["model_0.pt", "step_0.pt"]).unwrap(), ["model_0.pt", "step_0.pt"]);
    assert_eq!(picked(&["model_0.pt"]).unwrap(), ["model_0.pt"]);
    let several = picked(&["model_0.pt", "model_1.pt"]).unwrap_err();
    assert_eq!(several.code(), Code::UnknownFormat);
    let folder = directory(&[]);
    let unfinished = folder.path().join("tmp_step");
    fs::create_dir(&unfinished).unwrap();
    fs::write(unfinished.join("metadata.pkl"), "metadata world_size").unwrap();
    assert_eq!(resolve_one(&unfinished).unwrap_err().code(), Code::DcpUnfinished);
}

const INDEX: &str =
    r#"={"metadata":{"total_size":12,"by":"me","x":[1]},"weight_map":{"v":"2.st","w":"1.st"}}"#;

#[test]
fn all_missing_shards_are_listed() {
    let error = picked(&[&format!("model.safetensors.index.json{INDEX}")]).unwrap_err();
    assert_eq!(error.code(), Code::ShardMissing);
    assert!(error.message().contains("1.st, 2.st"), "{error}");
    let error = picked(&["m-00002-of-00004.safetensors", "m-00004-of-00004.safetensors"]).unwrap_err();
    assert_eq!(error.code(), Code::ShardMissing);
    assert!(
        error.message().contains("m-00001-of-00004.safetensors, m-00003-of-00004.safetensors"),
        "{error}"
    );
    let error = picked(&["consolidated.00.pth", "consolidated.02.pth"]).unwrap_err();
    assert!(error.message().contains(": consolidated.01.pth"), "{error}");
}

// On Windows, links need a privilege.
#[cfg(unix)]
#[test]
fn a_dangling_link_is_a_missing_shard() {
    let directory = directory(&[&format!("model.safetensors.index.json{INDEX}"), "1.st"]);
    std::os::unix::fs::symlink("/nonexistent/blob", directory.path().join("2.st")).unwrap();
    assert_eq!(resolve_one(directory.path()).unwrap_err().code(), Code::ShardMissing);
    fs::remove_file(directory.path().join("2.st")).unwrap();
    std::os::unix::fs::symlink("1.st", directory.path().join("2.st")).unwrap();
    assert_eq!(resolve_one(directory.path()).unwrap().files.len(), 2);
}

#[test]
fn naming_schemes_have_a_fixed_order() {
    let index = "=".to_owned() + r#"{"weight_map":{"w":"s.bin"}}"#;
    let other = format!("x.safetensors.index.json{index}");
    for (files, want) in [
        (&["model.safetensors", &other, "s.bin"][..], &["model.safetensors"][..]),
        (&["adapter_model.safetensors", &other, "s.bin"], &["s.bin"]),
        (&["adapter_model.safetensors", "x.safetensors"], &["adapter_model.safetensors"]),
        (&["consolidated.safetensors", "a-00001-of-00001.safetensors"], &["consolidated.safetensors"]),
        (
            &["a-00002-of-00002.safetensors", "a-00001-of-00002.safetensors", "x.sft"],
            &["a-00001-of-00002.safetensors", "a-00002-of-00002.safetensors"],
        ),
        (&["x.sft", "config.json"], &["x.sft"]),
        (&["pytorch_model.bin", "training_args.bin", "optimizer.pt"], &["pytorch_model.bin"]),
        (&["pytorch_model-00001-of-00001.bin", "consolidated.00.pth"], &["pytorch_model-00001-of-00001.bin"]),
        (&["consolidated.00.pth", "consolidated.01.pth"], &["consolidated.00.pth", "consolidated.01.pth"]),
        (&["x.ckpt", "training_args.bin", ".hidden.pt"], &["x.ckpt"]),
        (&["training_args.bin"], &["training_args.bin"]),
        (&["model.safetensors", "pytorch_model.bin"], &["model.safetensors"]),
        // Variants only where no plain file exists.
        (&["model.fp16.safetensors", "model.safetensors"], &["model.safetensors"]),
        (&["model.fp16.safetensors", "vae.safetensors"], &["model.fp16.safetensors"]),
        (
            &["model-00001-of-00001.fp16.safetensors", "model-00001-of-00001.safetensors"],
            &["model-00001-of-00001.safetensors"],
        ),
        (&["model.fp16-00001-of-00001.safetensors"], &["model.fp16-00001-of-00001.safetensors"]),
    ] {
        assert_eq!(picked(files).unwrap(), want, "{files:?}");
    }
    let variant = format!("model.safetensors.index.fp16.json{index}");
    assert_eq!(picked(&[&variant, "s.bin", "a-00001-of-00001.fp16.safetensors"]).unwrap(), ["s.bin"]);
}

#[test]
fn safetensors_are_preferred_with_a_note() {
    let notes = |files: &[&str]| resolve_one(directory(files).path()).unwrap().notes.len();
    assert_eq!(notes(&["model.safetensors", "pytorch_model.bin"]), 1);
    assert_eq!(notes(&["model.safetensors", "training_args.bin"]), 0);
}

#[test]
fn a_checkpoint_of_orbax_is_named_and_does_not_hide_weights() {
    for name in ["_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt"] {
        let error = picked(&[name]).unwrap_err();
        assert_eq!(error.code(), Code::UnknownFormat);
        assert!(error.message().contains("orbax"), "{error}");
        assert_eq!(picked(&[name, "model.safetensors"]).unwrap(), ["model.safetensors"]);
    }
}

#[test]
fn the_ranks_of_deepspeed_are_in_the_order_of_their_numbers() {
    let names: Vec<String> =
        (0..12).rev().map(|rank| format!("bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")).collect();
    let mut files: Vec<&str> = names.iter().map(String::as_str).collect();
    files.extend(["mp_rank_00_model_states.pt", "zero_to_fp32.py"]);
    let found = picked(&files).unwrap();
    let expected: Vec<&String> = names.iter().rev().collect();
    assert_eq!(found[0], "mp_rank_00_model_states.pt");
    assert_eq!(found[1..].iter().collect::<Vec<_>>(), expected);
    files.retain(|name| !name.contains("_rank_3_"));
    assert_eq!(picked(&files).unwrap_err().code(), Code::ShardMissing);
    // A folder without the states of an optimizer is one of files of torch.
    assert_eq!(picked(&["mp_rank_00_model_states.pt"]).unwrap(), ["mp_rank_00_model_states.pt"]);
}
