//! The torch index: every function that creates a tensor, every container of tensors, and the resulting names.

use crate::support::pickle::{Pickle, Tensor, pickle, torch_dict, torch_state_dict};
use crate::support::zip::Archive;
use crate::support::{bytes_of, f32s, names, opened};
use rustload::internals::bytes::Source;
use rustload::internals::container::zip::{Archive as Zip, Trailing};
use rustload::internals::index::{DictKind, Object, Path, PathStep};
use rustload::internals::{path, quantization, trees};
use rustload::{Cancel, DType, Limits};

fn floats(shape: &[i64], key: &str) -> Tensor {
    Tensor::whole(DType::F32, shape, key)
}

/// An archive of one pickle with storages 0 to 3, each with the f32 values 0.0 to 5.0.
fn archive(build: impl FnOnce(&mut Pickle)) -> Archive {
    let bytes = six();
    let archive = Archive::new(pickle(build));
    ["0", "1", "2", "3"].iter().fold(archive, |archive, key| archive.storage(key, &bytes))
}

fn six() -> Vec<u8> {
    f32s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
}

/// The names of what `build` writes.
fn names_of(build: impl FnOnce(&mut Pickle)) -> Vec<String> {
    names(&opened(archive(build).bytes()))
}

fn w(p: &mut Pickle) {
    p.tensor(&floats(&[2, 3], "0"));
}

#[test]
fn the_builder_writes_what_torch_writes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/containers/torch.pt");
    let source = Source::open(path.as_ref()).unwrap();
    let zip = Zip::open(&source, &Limits::default(), Trailing::Error).unwrap();
    let real =
        zip.read(zip.find("torch/data.pkl").unwrap(), "pickle_bytes", 1 << 20, &Cancel::new()).unwrap();
    let ours = torch_dict(&[("w", floats(&[2, 3], "0")), ("b", Tensor::whole(DType::BF16, &[64], "1"))]);
    assert_eq!(ours, real);
}

#[test]
fn every_dtype_and_its_storage_class_is_read() {
    for &dtype in DType::ALL {
        let bytes: Vec<u8> = (0..4 * dtype.itemsize() as u8).map(|byte| byte & 1).collect();
        let built =
            Archive::new(torch_dict(&[("w", Tensor::whole(dtype, &[2, 2], "0"))])).storage("0", &bytes);
        let checkpoint = opened(built.bytes());
        let tensor = checkpoint.tensor("w").unwrap();
        assert_eq!((tensor.dtype(), &tensor.layout().shape[..]), (dtype, &[2, 2][..]));
        assert_eq!(bytes_of(&checkpoint, "w"), bytes, "{dtype}");
    }
}

#[test]
fn storage_classes_of_cuda_and_python_2_strings_are_read() {
    let checkpoint = opened(
        archive(|p| {
            p.call("torch._utils", "_rebuild_tensor_v2", |p| {
                p.tuple(|p| {
                    p.raw(b"U\x07storage").global("torch.cuda", "FloatStorage").raw(b"U\x010");
                    p.text("cuda:0").int(6);
                })
                .binpersid();
                p.int(0).ints(&[6]).ints(&[1]).bool(false).ordered_dict();
            });
        })
        .bytes(),
    );
    assert_eq!(names(&checkpoint), ["tensor"]);
    assert_eq!(bytes_of(&checkpoint, "tensor"), six());
}

#[test]
fn every_rebuild_function_gives_the_tensor() {
    let checkpoint = opened(
        archive(|p| {
            p.dict_of(|p| {
                let tensor = floats(&[2, 3], "0");
                p.text("v1").call("torch._utils", "_rebuild_tensor", |p| {
                    p.place(&tensor);
                });
                p.text("v2").tensor(&tensor);
                p.text("v3").call("torch._utils", "_rebuild_tensor_v3", |p| {
                    p.storage_in(("torch.storage", "UntypedStorage"), "1", 24).int(1).ints(&[3]).ints(&[2]);
                    p.bool(true).ordered_dict().global("torch", "float32").dict();
                });
                p.text("parameter").call("torch._utils", "_rebuild_parameter", |p| {
                    p.tensor(&tensor).bool(true).ordered_dict();
                });
                p.text("with_state").call("torch._utils", "_rebuild_parameter_with_state", |p| {
                    p.tensor(&tensor).bool(false).ordered_dict().dict_of(|p| {
                        p.text("note").int(1);
                    });
                });
                p.text("subclass").call("torch._tensor", "_rebuild_from_type_v2", |p| {
                    p.global("torch._utils", "_rebuild_tensor_v2").global("mine", "MyTensor");
                    p.tuple(|p| {
                        p.place(&tensor).bool(false).ordered_dict();
                    });
                    p.dict();
                });
            });
        })
        .bytes(),
    );
    assert_eq!(names(&checkpoint), ["v1", "v2", "v3", "parameter", "with_state", "subclass"]);
    let flags = |name: &str| {
        let tensor = checkpoint.tensor(name).unwrap();
        (tensor.is_parameter(), tensor.requires_grad())
    };
    assert_eq!(flags("v2"), (false, false));
    assert_eq!(flags("v3"), (false, true));
    assert_eq!(flags("parameter"), (true, true));
    assert_eq!(flags("with_state"), (true, false));
    assert_eq!(bytes_of(&checkpoint, "v3"), f32s(&[1.0, 3.0, 5.0]));
    assert_eq!(bytes_of(&checkpoint, "subclass"), six());
    assert!(checkpoint.globals().unwrap().contains(&"mine.MyTensor".to_owned()));
    assert_eq!(checkpoint.opaque(), []);
}

#[test]
fn a_state_dict_keeps_its_metadata_beside_its_tensors() {
    let entries = [("fc.weight", floats(&[2, 3], "0")), ("fc.bias", floats(&[6], "1"))];
    let built = Archive::new(torch_state_dict(&entries)).storage("0", &six()).storage("1", &six());
    let checkpoint = opened(built.bytes());
    assert_eq!(names(&checkpoint), ["fc.weight", "fc.bias"]);
    let (_, tree) = trees(&checkpoint).next().unwrap();
    let tree = tree.unwrap();
    let Object::Dict { kind, entries, states, .. } = tree.get(tree.root()).unwrap() else {
        panic!("no dict")
    };
    assert_eq!((kind, entries.len(), states.len()), (DictKind::OrderedDict, 2, 1));
}

#[test]
fn other_mappings_and_sequences_are_searched_for_tensors() {
    let found = names_of(|p| {
        p.dict_of(|p| {
            p.text("default").call("collections", "defaultdict", |p| {
                p.global("builtins", "list");
            });
            p.text("a");
            w(p);
            p.op(b's');
            p.text("from_pairs").call("collections", "OrderedDict", |p| {
                p.list_of(|p| {
                    p.list_of(|p| {
                        p.text("b");
                        w(p);
                    });
                });
            });
            p.text("deque").call("collections", "deque", |p| {
                p.list().none();
            });
            w(p);
            p.op(b'a');
            p.text("list").list_of(|p| {
                p.int(7);
                w(p);
                p.tuple(|p| {
                    w(p);
                    w(p);
                });
            });
        });
    });
    let expected = ["default.a", "from_pairs.b", "deque.0", "list.1", "list.2.0", "list.2.1"];
    assert_eq!(found, expected);
}

#[test]
fn nested_containers_give_dotted_names_and_exact_paths() {
    let checkpoint = opened(
        archive(|p| {
            p.dict_of(|p| {
                p.text("optimizer").dict_of(|p| {
                    p.text("state").dict_of(|p| {
                        p.int(0).dict_of(|p| {
                            p.text("exp_avg");
                            w(p);
                        });
                    });
                    p.text("list").list_of(|p| {
                        p.none();
                        w(p);
                    });
                });
            });
        })
        .bytes(),
    );
    assert_eq!(names(&checkpoint), ["optimizer.state.0.exp_avg", "optimizer.list.1"]);
    let Some(Path::Steps(steps)) = path(&checkpoint.tensor("optimizer.list.1").unwrap()).cloned() else {
        panic!("a pickle's tensors have steps")
    };
    assert!(matches!(&steps[..], [PathStep::Key(_), PathStep::Key(_), PathStep::Index(1)]), "{steps:?}");
}

#[test]
fn keys_of_every_kind_have_names() {
    let found = names_of(|p| {
        p.proto(3).dict_of(|p| {
            p.int(-3);
            w(p);
            p.none();
            w(p);
            p.bool(true);
            w(p);
            p.float(0.5);
            w(p);
            p.short_bytes(b"raw\xff");
            w(p);
            p.tuple(|p| {
                p.int(1).text("two");
            });
            w(p);
            p.tuple(|p| {
                p.int(1);
            });
            w(p);
            p.empty_tuple();
            w(p);
            p.global("torch", "float32");
            w(p);
        });
    });
    let expected =
        ["-3", "None", "True", "0.5", "b\"raw\\xff\"", "(1, \"two\")", "(1,)", "()", "torch.float32"];
    assert_eq!(found, expected);
}

#[test]
fn a_tensor_alone_is_called_tensor() {
    assert_eq!(names_of(w), ["tensor"]);
    assert_eq!(
        names_of(|p| {
            p.dict();
        }),
        Vec::<String>::new()
    );
    assert_eq!(
        names_of(|p| {
            p.none();
        }),
        Vec::<String>::new()
    );
}

#[test]
fn colliding_names_are_both_spelled_with_brackets() {
    let found = names_of(|p| {
        p.dict_of(|p| {
            p.text("a").dict_of(|p| {
                p.text("x.y");
                w(p);
                p.text("x").dict_of(|p| {
                    p.text("y");
                    w(p);
                });
            });
            p.text("b").list_of(w);
            p.text("b.0");
            w(p);
            p.int(1);
            w(p);
            p.text("1");
            w(p);
            p.text("plain");
            w(p);
        });
    });
    let expected = ["a[\"x.y\"]", "a.x.y", "b[0]", "[\"b.0\"]", "[1]", "[\"1\"]", "plain"];
    assert_eq!(found, expected);
}

#[test]
fn names_that_collide_even_with_brackets_get_an_unused_number() {
    // A state key and an item of one object have the same name; the third name is an existing `w#2`.
    let found = names_of(|p| {
        p.new_object("mine", "Dict").dict_of(|p| {
            p.text("w");
            w(p);
        });
        p.build();
        p.mark().text("w");
        w(p);
        p.text("w#2");
        w(p);
        p.op(b'u');
    });
    let mut unique = found.clone();
    unique.sort();
    unique.dedup();
    assert_eq!((found.len(), unique.len()), (3, 3), "{found:?}");
    assert!(found.contains(&"w#2".to_owned()) && found.contains(&"w".to_owned()), "{found:?}");
}

#[test]
fn the_last_of_equal_keys_wins() {
    let checkpoint = opened(
        archive(|p| {
            p.dict_of(|p| {
                p.text("w").int(1).int(1).none().text("w");
                w(p);
                p.bool(true).tensor(&floats(&[6], "1"));
            });
        })
        .bytes(),
    );
    assert_eq!(names(&checkpoint), ["w", "1"]);
}

#[test]
fn tied_tensors_stay_tied_and_count_once() {
    let checkpoint = opened(
        archive(|p| {
            p.dict_of(|p| {
                p.text("embed");
                w(p);
                p.put_at(9).text("head").get(9).text("other").tensor(&floats(&[6], "1"));
                p.text("view").tensor(&floats(&[6], "0").part(&[2], &[3], 1));
            });
        })
        .bytes(),
    );
    let tied: Vec<Vec<String>> =
        checkpoint.tied().iter().map(|group| group.iter().map(|name| name.to_string()).collect()).collect();
    assert_eq!(tied, [["embed", "head", "view"]]);
    assert_eq!(checkpoint.nbytes(), 48);
    let storage = |name: &str| checkpoint.tensor(name).unwrap().storage();
    assert_eq!(storage("embed"), storage("view"));
    assert_ne!(storage("embed"), storage("other"));
    assert_eq!(bytes_of(&checkpoint, "view"), f32s(&[1.0, 4.0]));
}

#[test]
fn t20_untyped_and_byte_storage_of_one_key_are_one_storage() {
    let checkpoint = opened(
        archive(|p| {
            p.list_of(|p| {
                p.tensor(&Tensor::whole(DType::F8E4M3Fn, &[4, 6], "0"));
                p.tensor(&Tensor::whole(DType::U8, &[24], "0"));
            });
        })
        .bytes(),
    );
    assert_eq!(checkpoint.tied().len(), 1);
    assert_eq!(bytes_of(&checkpoint, "0"), six());
}

#[test]
fn empty_storages_need_no_member() {
    let pickle = torch_dict(&[
        ("absent", floats(&[0, 3], "0")),
        ("there", floats(&[2, 0], "1")),
        ("far", floats(&[0], "2").part(&[0, 1 << 40], &[1, 1], 7)),
        ("typed", Tensor::whole(DType::I64, &[0], "1")),
    ]);
    let checkpoint = opened(Archive::new(pickle).storage("1", b"").bytes());
    assert_eq!(checkpoint.len(), 4);
    for name in names(&checkpoint) {
        assert_eq!(bytes_of(&checkpoint, &name), b"", "{name}");
    }
}

#[test]
fn a_bare_storage_is_a_tensor_of_one_dimension() {
    let checkpoint = opened(
        archive(|p| {
            p.dict_of(|p| {
                p.text("typed").storage(DType::F32, "0", 6);
                p.text("untyped").storage_in(("torch", "UntypedStorage"), "1", 24).put_at(5);
                p.text("again").get(5);
                p.text("tensor").tensor(&floats(&[6], "0"));
            });
        })
        .bytes(),
    );
    assert_eq!(names(&checkpoint), ["typed", "untyped", "again", "tensor"]);
    let typed = checkpoint.tensor("typed").unwrap();
    assert_eq!((typed.dtype(), &typed.layout().shape[..]), (DType::F32, &[6][..]));
    let untyped = checkpoint.tensor("untyped").unwrap();
    assert_eq!((untyped.dtype(), &untyped.layout().shape[..]), (DType::U8, &[24][..]));
    assert_eq!(checkpoint.tied().len(), 2);
}

#[test]
fn z34b_an_archive_without_checksums_opens_with_a_note() {
    let checkpoint = opened(archive(w).no_checksums().bytes());
    assert!(checkpoint.notes().iter().any(|note| note.contains("checksum")), "{:?}", checkpoint.notes());
    let options = rustload::Options::new().verify(true);
    let bytes = archive(w).no_checksums().bytes();
    rustload::Checkpoint::from_bytes(std::sync::Arc::new(bytes), options).unwrap();
}

#[test]
fn torchscript_weights_are_read_and_its_code_is_noted() {
    let built = archive(|p| {
        p.new_object("__torch__", "Net").dict_of(|p| {
            p.text("training").bool(false).text("weight");
            w(p);
        });
        p.build();
    });
    let checkpoint = opened(built.with("constants.pkl", b"\x80\x02).").with("code/net.py", b"x").bytes());
    assert_eq!(names(&checkpoint), ["weight"]);
    assert!(checkpoint.notes().iter().any(|note| note.contains("TorchScript")), "{:?}", checkpoint.notes());
}

#[test]
fn tensors_in_objects_of_unknown_classes_are_reachable() {
    let found = names_of(|p| {
        p.dict_of(|p| {
            p.text("dict_state").new_object("mine", "A").dict_of(|p| {
                p.text("w");
                w(p);
            });
            p.build();
            p.text("slots").new_object("mine", "B").tuple(|p| {
                p.none().dict_of(|p| {
                    p.text("w");
                    w(p);
                });
            });
            p.build();
            p.text("both").new_object("mine", "B").tuple(|p| {
                p.dict_of(|p| {
                    p.text("a");
                    w(p);
                });
                p.dict_of(|p| {
                    p.text("b");
                    w(p);
                });
            });
            p.build();
            p.text("called").call("mine", "make", |p| {
                p.int(1);
                w(p);
            });
            p.text("items").new_object("mine", "D").text("k");
            w(p);
            p.op(b's');
            p.mark().text("l");
            w(p);
            p.op(b'u');
            p.text("appended").new_object("mine", "L");
            w(p);
            p.op(b'a');
            p.mark();
            w(p);
            p.op(b'e');
            p.text("list_state").new_object("mine", "E").list_of(w);
            p.build();
            p.text("inst").mark();
            w(p);
            p.raw(b"imine\nF\n");
            p.text("old").call("copyreg", "_reconstructor", |p| {
                p.global("mine", "Old").global("builtins", "object").none();
            });
            p.dict_of(|p| {
                p.text("w");
                w(p);
            });
            p.build();
        });
    });
    let expected = [
        "dict_state.w",
        "slots.w",
        "both.a",
        "both.b",
        "called.args.1",
        "items.k",
        "items.l",
        "appended.0",
        "appended.1",
        "list_state.args.0.0",
        "inst.args.0",
        "old.w",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_later_state_key_replaces_an_earlier_one() {
    let found = names_of(|p| {
        p.new_object("mine", "A").dict_of(|p| {
            p.text("w");
            w(p);
            p.text("w");
            w(p);
        });
        p.build();
    });
    assert_eq!(found, ["w"]);
}

#[test]
fn attributes_of_an_ordered_dict_are_reachable() {
    let found = names_of(|p| {
        p.ordered_dict().text("w");
        w(p);
        p.op(b's').dict_of(|p| {
            p.text("extra");
            w(p);
        });
        p.build();
    });
    assert_eq!(found, ["w", "extra"]);
}

#[test]
fn unknown_classes_are_listed_with_count_and_paths() {
    let checkpoint = opened(
        archive(|p| {
            p.dict_of(|p| {
                p.text("cfg").list_of(|p| {
                    p.times(3, |p| {
                        p.new_object("argparse", "Namespace");
                    });
                });
                p.text("old").call("copyreg", "_reconstructor", |p| {
                    p.global("mine", "Old").global("builtins", "object").none();
                });
            });
            // Created and popped: it is counted, but has no path.
            p.call("mine", "lost", |_| {}).pop();
        })
        .bytes(),
    );
    let found: Vec<_> =
        checkpoint.opaque().into_iter().map(|class| (class.class, class.count, class.at)).collect();
    let at = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let expected = [
        ("argparse.Namespace".to_owned(), 3, at(&["cfg.0", "cfg.1", "cfg.2"])),
        ("mine.Old".to_owned(), 1, at(&["old"])),
        ("mine.lost".to_owned(), 1, at(&[])),
    ];
    assert_eq!(found, expected);
}

#[test]
fn t24_packed_and_quantized_storages_keep_their_raw_bytes() {
    let checkpoint = opened(
        archive(|p| {
            p.dict_of(|p| {
                p.text("q").call("torch._utils", "_rebuild_qtensor", |p| {
                    p.storage_in(("torch", "QInt8Storage"), "0", 24).int(0).ints(&[24]).ints(&[1]);
                    p.tuple(|p| {
                        p.global("torch", "per_tensor_affine").float(0.1).int(0);
                    });
                    p.bool(false).ordered_dict();
                });
                p.text("fp4").tensor(&Tensor::whole(DType::F4E2M1FnX2, &[24], "1"));
            });
        })
        .bytes(),
    );
    assert_eq!(names(&checkpoint), ["q", "fp4"]);
    let q = checkpoint.tensor("q").unwrap();
    assert_eq!((q.dtype(), quantization(&q).unwrap().dtype), (DType::I8, "qint8"));
    assert_eq!(bytes_of(&checkpoint, "fp4"), six());
}

#[test]
fn t22_a_storage_on_two_devices_is_noted() {
    let on = |p: &mut Pickle, device: &str| {
        p.call("torch._utils", "_rebuild_tensor", |p| {
            p.tuple(|p| {
                p.text("storage").global("torch", "FloatStorage").text("0").text(device).int(6);
            })
            .binpersid();
            p.int(0).ints(&[6]).ints(&[1]);
        });
    };
    let checkpoint = opened(
        archive(|p| {
            p.list_of(|p| {
                on(p, "cpu");
                on(p, "cuda:0");
                on(p, "cuda:1");
            });
        })
        .bytes(),
    );
    let told = checkpoint.notes().iter().filter(|note| note.contains("two devices")).count();
    assert_eq!((checkpoint.len(), told), (3, 1));
}

#[test]
fn containers_that_contain_themselves_are_visited_once() {
    let found = names_of(|p| {
        p.dict().put_at(0).text("self").get(0).op(b's').text("w");
        w(p);
        p.op(b's').text("list").list().put_at(1).get(1).op(b'a');
        w(p);
        p.op(b'a').op(b's');
    });
    assert_eq!(found, ["w", "list.1"]);
}

#[test]
fn real_files_of_torch_open() {
    for (name, notes) in
        [("torch.pt", 0), ("no_crc.pt", 1), ("zipfile_deflated.pt", 0), ("info_zip_piped.pt", 0)]
    {
        let path = format!("{}/tests/data/containers/{name}", env!("CARGO_MANIFEST_DIR"));
        let checkpoint = rustload::Checkpoint::open(path).expect(name);
        assert_eq!(names(&checkpoint), ["w", "b"], "{name}");
        assert_eq!(bytes_of(&checkpoint, "w"), six(), "{name}");
        assert_eq!(checkpoint.notes().len(), notes, "{name}: {:?}", checkpoint.notes());
    }
}
