//! Torch files that are expensive to read, cut, damaged or changed. The outcome of each input of the attack matrix is tested in
//! tests/python/attacks.

use std::sync::Arc;
use std::time::Duration;

use crate::support::pickle::{Pickle, Tensor, pickle, torch_dict};
use crate::support::zip::Archive;
use crate::support::{code, f32s, on_small_stack, open, opened};
use rustload::{Checkpoint, Code, DType, Limits, Options, Request, Subject};

const SIX: [f32; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];

fn floats(shape: &[i64]) -> Tensor {
    Tensor::whole(DType::F32, shape, "0")
}

/// An archive of one pickle with 6 floats as storage 0.
fn archive(build: impl FnOnce(&mut Pickle)) -> Archive {
    Archive::new(pickle(build)).storage("0", &f32s(&SIX))
}

/// A valid archive with one tensor, `w`.
fn good() -> Archive {
    Archive::new(torch_dict(&[("w", floats(&[2, 3]))])).storage("0", &f32s(&SIX))
}

// Resource bombs: each opens, or fails with the stated limit, on a stack of 256 KiB and in time linear in the file's size.

/// The most wall time. The bound of the attack matrix is 2 s in a release build; tests are debug builds and run concurrently.
const TIME_MAX: Duration = Duration::from_secs(20);

/// Opens, lists and drops on a small stack.
fn bomb(bytes: Vec<u8>) -> Result<usize, (Code, String)> {
    let (result, time) = on_small_stack(move || {
        let checkpoint = open(bytes).map_err(|error| match error.subject() {
            Subject::Limit { name, .. } => (error.code(), (*name).to_owned()),
            _ => (error.code(), error.to_string()),
        })?;
        let _ = (
            checkpoint.tied().len(),
            checkpoint.opaque().len(),
            checkpoint.globals().map_or(0, |found| found.len()),
        );
        Ok(checkpoint.len())
    });
    assert!(time < TIME_MAX, "{time:?}");
    println!("{result:?} in {time:?}, peak of the process {} MiB", peak_mib());
    result
}

/// The process's peak of resident memory so far.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) >> 10
}

fn limit(name: &str) -> Result<usize, (Code, String)> {
    Err((Code::Limit, name.to_owned()))
}

/// `levels` containers, each of which contains the previous one twice.
fn dag(levels: usize, kind: &str, bottom: impl Fn(&mut Pickle)) -> Vec<u8> {
    archive(|p| {
        bottom(p);
        for level in 0..levels {
            let number = level as u32;
            p.put_at(number).pop();
            match kind {
                "tuple" => p.get(number).get(number).op(0x86),
                "list" => p.list().mark().get(number).get(number).op(b'e'),
                "dict" => p.dict().mark().text("a").get(number).text("b").get(number).op(b'u'),
                "dup" => p.list().get(number).dup().op(0x86).op(b'a'),
                "call" => p
                    .global("collections", "OrderedDict")
                    .empty_tuple()
                    .op(b'R')
                    .mark()
                    .int(0)
                    .get(number)
                    .int(1)
                    .get(number)
                    .op(b'u'),
                _ => p.global("mine", "Node").get(number).get(number).op(0x86).op(b'R'),
            };
        }
    })
    .bytes()
}

#[test]
fn r01_a_tensor_with_exponentially_many_names_is_a_limit_error() {
    for kind in ["tuple", "list", "dict", "dup", "call", "opaque"] {
        let mut options = Options::default();
        options.limits.tensors = 100_000;
        let bytes = dag(60, kind, |p| {
            p.tensor(&floats(&[6]));
        });
        let ((), time) = on_small_stack(move || {
            let error = Checkpoint::from_bytes(Arc::new(bytes), options).unwrap_err();
            let Subject::Limit { name, .. } = error.subject() else { panic!("{error:?}") };
            assert!(["tensors", "name_bytes_total", "export_nodes"].contains(name), "{name}");
        });
        assert!(time < TIME_MAX, "{kind}: {time:?}");
    }
    assert_eq!(
        bomb(dag(10, "list", |p| {
            p.tensor(&floats(&[6]));
        })),
        Ok(1024)
    );
}

#[test]
fn r07_r08_deep_nesting_is_a_limit_error_only_if_it_contains_a_tensor() {
    const DEEP: usize = 1_000_000;
    let tuples = |bottom: &dyn Fn(&mut Pickle)| {
        archive(|p| {
            bottom(p);
            p.times(DEEP, |p| {
                p.op(0x85);
            });
        })
        .bytes()
    };
    let lists = |bottom: &dyn Fn(&mut Pickle)| {
        archive(|p| {
            p.list().raw(&b"]".repeat(DEEP));
            bottom(p);
            p.raw(&b"a".repeat(DEEP + 1));
        })
        .bytes()
    };
    assert_eq!(
        bomb(tuples(&|p| {
            p.none();
        })),
        Ok(0)
    );
    assert_eq!(
        bomb(lists(&|p| {
            p.none();
        })),
        Ok(0)
    );
    let tensor: &dyn Fn(&mut Pickle) = &|p| {
        p.tensor(&floats(&[6]));
    };
    assert_eq!(bomb(tuples(tensor)), limit("depth"));
    assert_eq!(bomb(lists(tensor)), limit("depth"));
}

#[test]
fn r12_tensors_are_counted() {
    let many = |count: usize| {
        archive(|p| {
            p.global("torch._utils", "_rebuild_tensor").put_at(0).pop();
            p.storage(DType::F32, "0", 6).put_at(1).pop();
            p.empty_tuple().op(b'0').list().mark();
            // ((storage, 0, (), ()) R), 12 bytes each.
            p.times(count, |p| {
                p.raw(b"h\0(h\x01K\0))tR");
            });
            p.op(b'e');
        })
        .bytes()
    };
    assert_eq!(bomb(many(200_000)), Ok(200_000));
    let mut options = Options::default();
    options.limits.tensors = 100_000;
    let error = Checkpoint::from_bytes(Arc::new(many(100_001)), options).unwrap_err();
    assert!(matches!(error.subject(), Subject::Limit { name: "tensors", .. }), "{error:?}");
}

#[test]
fn r12_calls_of_one_class_are_counted_though_none_is_a_tensor() {
    let calls = |first: usize, second: usize| {
        let bytes = archive(|p| {
            p.global("mine", "A").put_at(0).pop();
            p.global("mine", "B").put_at(1).pop();
            p.list().mark();
            p.times(first, |p| {
                p.raw(b"h\0)R");
            });
            p.times(second, |p| {
                p.raw(b"h\x01)R");
            });
            p.op(b'e');
        });
        let limits = Limits::new().tensors(10);
        Checkpoint::from_bytes(Arc::new(bytes.bytes()), Options::new().limits(limits))
    };
    assert_eq!(calls(10, 10).unwrap().len(), 0);
    for (first, second) in [(11, 0), (0, 11)] {
        let error = calls(first, second).unwrap_err();
        assert!(matches!(error.subject(), Subject::Limit { name: "tensors", .. }), "{error:?}");
    }
}

#[test]
fn r17_duplicate_keys_of_a_shared_dict_are_resolved_once() {
    // A dict with one key that is written n times and a dict that is referenced n times: n * n steps without a cache.
    const MANY: usize = 100_000;
    let write_dict = |p: &mut Pickle| {
        p.dict().mark();
        p.times(MANY, |p| {
            p.raw(b"K\x01N");
        });
        p.op(b'u').put_at(0).pop();
    };
    let shared = |p: &mut Pickle, each: &[u8]| {
        p.list().mark();
        p.times(MANY, |p| {
            p.raw(each);
        });
        p.op(b'e');
    };
    let plain = archive(|p| {
        write_dict(p);
        shared(p, b"h\0");
    });
    assert_eq!(bomb(plain.bytes()), Ok(0));
    for (module, name) in [("collections", "OrderedDict"), ("mine", "Thing"), ("mine", "State")] {
        let calls = archive(|p| {
            write_dict(p);
            p.global(module, name).put_at(1).pop();
            shared(p, if name == "State" { b"h\x01)Rh\0b" } else { b"h\x01h\0\x85R" });
        });
        assert_eq!(bomb(calls.bytes()), Ok(0), "{name}");
    }
}

#[test]
fn r17_dicts_that_many_modules_share_are_read_in_linear_time() {
    // n objects with the same state, whose three dicts are the same dict, with one key that is written n times.
    const MANY: usize = 100_000;
    let bytes = archive(|p| {
        p.dict()
            .mark()
            .times(MANY, |p| {
                p.raw(b"K\x01N");
            })
            .op(b'u')
            .put_at(0)
            .pop();
        p.dict_of(|p| {
            for name in ["_parameters", "_buffers", "_modules"] {
                p.text(name).get(0);
            }
        });
        p.put_at(2).pop().global("mine", "Net").put_at(1).pop().list().mark();
        p.times(MANY, |p| {
            p.raw(b"h\x01)Rh\x02b");
        });
        p.op(b'e');
    });
    assert_eq!(bomb(bytes.bytes()), Ok(0));
}

#[test]
fn r17_arguments_and_states_that_many_numpy_dtypes_share_are_read_in_linear_time() {
    const MANY: usize = 100_000;
    for (args, state) in [(true, false), (false, true)] {
        let bytes = archive(|p| {
            p.mark().text("f4");
            p.times(if args { MANY } else { 2 }, |p| {
                p.none();
            });
            p.op(b't').put_at(0).pop();
            p.mark().times(MANY, |p| {
                p.none();
            });
            p.op(b't').put_at(2).pop().global("numpy", "dtype").put_at(1).pop().list().mark();
            p.times(MANY, |p| {
                p.raw(if state { b"h\x01h\0Rh\x02b" } else { b"h\x01h\0R" });
            });
            p.op(b'e');
        });
        assert_eq!(bomb(bytes.bytes()), Ok(0));
    }
}

#[test]
fn r18_long_arguments_that_many_calls_share_are_read_once() {
    const MANY: usize = 100_000;
    let text = "x".repeat(1_000_000);
    let shared = |first: &dyn Fn(&mut Pickle), call: (&str, &str), each: &'static [u8]| {
        archive(|p| {
            first(p);
            p.put_at(0).pop().text("latin1").put_at(2).pop();
            p.global(call.0, call.1).put_at(1).pop().list().mark();
            p.times(MANY, |p| {
                p.raw(each);
            });
            p.op(b'e');
        })
        .bytes()
    };
    let encode = shared(
        &|p| {
            p.text(&text);
        },
        ("_codecs", "encode"),
        b"h\x01h\0h\x02\x86R",
    );
    assert_eq!(bomb(encode), Ok(0));
    let pairs: &dyn Fn(&mut Pickle) = &|p| {
        p.none()
            .none()
            .op(0x86)
            .put_at(3)
            .pop()
            .list()
            .mark()
            .times(MANY, |p| {
                p.get(3);
            })
            .op(b'e');
    };
    assert_eq!(bomb(shared(pairs, ("collections", "OrderedDict"), b"h\x01h\0\x85R")), Ok(0));
    let args: &dyn Fn(&mut Pickle) = &|p| {
        p.mark()
            .times(MANY, |p| {
                p.none();
            })
            .op(b't');
    };
    assert_eq!(bomb(shared(args, ("mine", "Thing"), b"h\x01h\0R")), Ok(0));
    let long_name = "n".repeat(4000);
    assert_eq!(
        bomb(shared(
            &|p| {
                p.none();
            },
            ("mine", &long_name),
            b"h\x01)R"
        )),
        Ok(0)
    );
}

#[test]
fn r19_persistent_ids_with_long_texts_are_refused() {
    let long = "c".repeat(1_000_000);
    let error = open(
        archive(|p| {
            p.tuple(|p| {
                p.text("storage").global("torch", "FloatStorage").text("0").text(&long).int(6);
            })
            .binpersid();
        })
        .bytes(),
    )
    .unwrap_err();
    assert_eq!(error.code(), Code::PersistentId);
}

#[test]
fn r20_long_keys_on_deep_paths_are_a_limit_error_before_names_are_built() {
    // 400 levels with one key of 4 MB: 1.6 GB of name.
    let long = "k".repeat(4_000_000);
    let built = |bottom: &dyn Fn(&mut Pickle)| {
        archive(|p| {
            p.text(&long).put_at(0).pop();
            p.times(400, |p| {
                p.dict().get(0);
            });
            bottom(p);
            p.raw(&b"s".repeat(400));
        })
        .bytes()
    };
    assert_eq!(
        bomb(built(&|p| {
            p.tensor(&floats(&[6]));
        })),
        limit("name_bytes_total")
    );
    assert_eq!(
        bomb(built(&|p| {
            p.new_object("mine", "A");
        })),
        limit("name_bytes_total")
    );
    // A tuple as a key, with 20 references to the long str.
    let tuple = archive(|p| {
        p.dict()
            .text(&long)
            .put_at(0)
            .pop()
            .mark()
            .times(20, |p| {
                p.get(0);
            })
            .op(b't');
        p.tensor(&floats(&[6])).op(b's');
    });
    let limits = Limits::new().name_bytes_total(16 << 20);
    let options = Options::new().limits(limits);
    assert_eq!(bomb(tuple.bytes()), Ok(1));
    let error = Checkpoint::from_bytes(Arc::new(tuple.bytes()), options).unwrap_err();
    assert!(matches!(error.subject(), Subject::Limit { name: "name_bytes_total", .. }), "{error:?}");
}

/// `count` globals of one module with a long name.
fn long_globals(count: usize) -> Archive {
    archive(|p| {
        p.proto(4).text(&"m".repeat(4000)).put_at(0).pop().list().mark();
        for at in 0..count {
            p.get(0).text(&format!("N{at}")).op(0x93);
        }
        p.op(b'e');
    })
}

#[test]
fn r22_listing_globals_of_a_module_with_a_long_name_is_a_limit_error() {
    let (result, time) = on_small_stack(|| opened(long_globals(200_000).bytes()).globals());
    let error = result.unwrap_err();
    assert!(matches!(error.subject(), Subject::Limit { name: "name_bytes_total", .. }), "{error:?}");
    assert!(time < TIME_MAX, "{time:?}");
    assert_eq!(opened(long_globals(100).bytes()).globals().unwrap().len(), 100);
}

#[test]
fn r22_name_bytes_of_all_shards_are_counted_together() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..4)
        .map(|number| {
            let path = folder.path().join(format!("{number}.bin"));
            let bytes = archive(|p| {
                p.list().mark();
                for at in 0..20 {
                    p.global(&format!("{}{number}", "m".repeat(2000)), &format!("N{at}"))
                        .empty_tuple()
                        .op(b'R');
                }
                p.op(b'e');
            });
            std::fs::write(&path, bytes.bytes()).unwrap();
            path
        })
        .collect();
    let mut options = Options::default();
    options.limits.name_bytes_total = 100_000;
    let error = Checkpoint::open_all(&paths, options.clone()).unwrap_err();
    assert!(matches!(error.subject(), Subject::Limit { name: "name_bytes_total", .. }), "{error:?}");
    assert_eq!(Checkpoint::open_all(&paths[..2], options).unwrap().opaque().len(), 40);
}

#[test]
fn r21_deflated_storages_are_counted_by_their_inflated_size() {
    let zeros = vec![0_u8; 1 << 20];
    let pickle = torch_dict(&[
        ("a", Tensor::whole(DType::U8, &[1 << 20], "0")),
        ("b", Tensor::whole(DType::U8, &[1 << 20], "1")),
    ]);
    let built =
        Archive::new(pickle).storage("0", &zeros).storage("1", &zeros).deflated("data/0").deflated("data/1");
    let checkpoint = opened(built.bytes());
    assert_eq!(checkpoint.nbytes(), 2 << 20);
}

// Legacy streams.

/// A legacy stream: magic, version, system info, `object`, the storage keys that `keys` writes, then `data`.
fn legacy(object: Vec<u8>, keys: impl FnOnce(&mut Pickle), data: &[u8]) -> Vec<u8> {
    let magic = pickle(|p| {
        p.long(b"\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19");
    });
    let version = pickle(|p| {
        p.int(1001);
    });
    let system = pickle(|p| {
        p.dict();
    });
    [magic, version, system, object, pickle(keys), data.to_vec()].concat()
}

#[test]
fn l05_a_storage_key_that_is_listed_twice_is_refused() {
    let long = "1".repeat(1_000_000);
    let keys = |p: &mut Pickle| {
        p.text(&long)
            .put_at(0)
            .pop()
            .list()
            .mark()
            .times(100_000, |p| {
                p.get(0);
            })
            .op(b'e');
    };
    let object = pickle(|p| {
        p.dict();
    });
    assert_eq!(code(legacy(object.clone(), keys, b"")), Code::LegacyKeys);
    let twice = |p: &mut Pickle| {
        p.list_of(|p| {
            p.text("0").text("0");
        });
    };
    assert_eq!(code(legacy(object, twice, b"")), Code::LegacyKeys);
}

#[test]
fn a_legacy_pickle_of_large_frames_is_read_whole() {
    // Protocol 4: one frame of 3 MiB with a long str, of which the first read of 1 MiB has only a part.
    let text = "x".repeat(3 << 20);
    let mut object = vec![0x80, 4, 0x95];
    object.extend_from_slice(&(5 + text.len() as u64 + 1).to_le_bytes());
    object
        .extend_from_slice(&[&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes(), b"."].concat());
    let bytes = legacy(
        object,
        |p| {
            p.list();
        },
        b"",
    );
    assert_eq!(opened(bytes).len(), 0);
}

#[test]
fn the_head_of_a_legacy_stream_is_bounded_as_a_whole() {
    // The first read is 1 MiB. Each pickle is far below the limit; together they are over it, and the last one is needed.
    let text = |len: usize| {
        let text = "x".repeat(len);
        pickle(|p| {
            p.text(&text);
        })
    };
    let pickles = legacy(
        text(1 << 20),
        |p| {
            p.text(&"y".repeat(1 << 20)).pop().list();
        },
        b"",
    );
    let size = pickles.len() as u64;
    let open = |pickle_bytes: u64, after: usize| {
        let bytes = [&pickles[..], &vec![0; after]].concat();
        let limits = Limits::new().pickle_bytes(pickle_bytes);
        let options = Options::new().limits(limits).ignore_trailing(true);
        // With a timeout, so that a reader that makes no progress fails the test instead of hanging it.
        let (done, found) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            done.send(Checkpoint::from_bytes(Arc::new(bytes), options).map_err(|error| error.code()))
        });
        found.recv_timeout(Duration::from_secs(60)).expect("opening ends within a minute")
    };
    for after in [0, 8 << 20] {
        assert_eq!(open(size, after).unwrap().len(), 0);
        for limit in [size - 1, size / 2 + (256 << 10)] {
            assert_eq!(open(limit, after).map(|_| ()).unwrap_err(), Code::Limit);
        }
    }
}

// Files.

#[test]
fn a17_a_file_truncated_at_any_byte_is_an_error() {
    let files = [good().bytes(), good().descriptors().deflated("data.pkl").bytes()];
    for bytes in files {
        for len in 0..bytes.len() {
            let error = open(bytes[..len].to_vec()).expect_err("a truncated file is refused");
            assert_ne!(error.code(), Code::InternalError, "{len}");
        }
    }
}

#[test]
fn a17_a_flipped_bit_is_never_an_internal_error() {
    let bytes = good().no_checksums().bytes();
    for at in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[at / 8] ^= 1 << (at % 8);
        let Ok(checkpoint) = open(flipped) else { continue };
        for position in 0..checkpoint.len() {
            let tensor = checkpoint.tensor_at(position).unwrap();
            if tensor.nbytes() < 1 << 20 {
                let result = tensor.materialize(&Request::new().copy(true));
                assert_ne!(result.err().map(|error| error.code()), Some(Code::InternalError), "bit {at}");
            }
        }
    }
}

#[test]
fn a18_a_file_that_changes_is_an_error_when_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.pt");
    std::fs::write(&path, good().bytes()).unwrap();
    let checkpoint = Checkpoint::open_all(std::slice::from_ref(&path), Options::default()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(40).unwrap();
    let tensor = checkpoint.tensor("w").unwrap();
    for copy in [None, Some(true), Some(false)] {
        let error = tensor.materialize(&Request::new().copy(copy)).unwrap_err();
        assert_eq!(error.code(), Code::FileChanged, "{copy:?}");
    }
    file.set_len(1 << 20).unwrap();
    let error = tensor.materialize(&Request::new().copy(true)).unwrap_err();
    assert_eq!(error.code(), Code::FileChanged);
}

#[test]
fn zip_files_of_other_programs_are_named_in_the_error() {
    let error = open(Archive::bare().with_path("META-INF/MANIFEST.MF", b"x").bytes()).unwrap_err();
    assert_eq!(error.code(), Code::UnknownFormat, "{error}");
    assert!(error.message().contains("Java"), "{error}");
    let error = open(Archive::bare().with_path("a/archive_format", b"x").bytes()).unwrap_err();
    assert_eq!(error.code(), Code::ExportVersion, "{error}");
    let error = open(Archive::bare().with("x", b"x").bytes()).unwrap_err();
    assert_eq!(error.code(), Code::RecordMissing);
}
