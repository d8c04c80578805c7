//! Attacks in torch archives, by the ids of the attack matrix: the expected result or error code of each, and bounds on its cost.
//!
//! Nothing can be executed, because the crate has no code that calls what a file names. The tests check that a file is refused
//! with a specific code, or that unknown values are kept as inert data and the other tensors can still be read.

use std::sync::Arc;
use std::time::Duration;

use crate::support::pickle::{Pickle, Tensor, pickle, torch_dict};
use crate::support::zip::Archive;
use crate::support::{bytes_of, code, f32s, names, on_small_stack, open, open_strict, opened};
use rustload::{Checkpoint, Code, DType, Kind, Limits, Options, Request, Subject};

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

fn code_of(build: impl FnOnce(&mut Pickle)) -> Code {
    code(archive(build).bytes())
}

/// The code for one tensor on storage 0.
fn tensor_code(tensor: Tensor) -> Code {
    code_of(|p| {
        p.tensor(&tensor);
    })
}

/// Checks that what `build` writes is kept as data beside a tensor, and refused with `unknown="error"`; returns that error.
fn kept_and_refused(build: impl Fn(&mut Pickle)) -> rustload::Error {
    let bytes = archive(|p| {
        p.dict_of(|p| {
            p.text("w").tensor(&floats(&[6])).text("x");
            build(p);
        });
    })
    .bytes();
    let checkpoint = opened(bytes.clone());
    assert_eq!(bytes_of(&checkpoint, "w"), f32s(&SIX));
    let error = open_strict(bytes).expect_err("an unknown value is refused on request");
    assert_eq!(error.kind(), Kind::Disallowed);
    assert!(error.offset().is_some(), "{error:?}");
    error
}

fn global_of(error: &rustload::Error) -> String {
    match error.subject() {
        Subject::Global { module, name } => format!("{module}.{name}"),
        other => panic!("{error:?} is about {other:?}"),
    }
}

// Members of the archive.

#[test]
fn z17_two_pickles_are_refused_in_any_order() {
    let evil = b"\x80\x02N.";
    assert_eq!(code(good().with("data.pkl", evil).bytes()), Code::ZipDuplicate);
    assert_eq!(code(good().with_first("data.pkl", evil).bytes()), Code::ZipDuplicate);
}

#[test]
fn z18_z19_z20_required_names_in_another_case_are_refused() {
    for name in ["DATA.PKL", "Constants.pkl", "Version", "BYTEORDER"] {
        assert_eq!(code(good().with(name, b"x").bytes()), Code::ZipCase, "{name}");
    }
    assert_eq!(code(good().renamed("data.pkl", "DATA.PKL").bytes()), Code::ZipCase);
    assert_eq!(names(&opened(good().with("W.npy", b"").with("w.npy", b"").bytes())), ["w"]);
}

#[test]
fn z21_z22_z23_all_members_are_in_one_root_folder() {
    assert_eq!(code(good().with_path("other/data.pkl", b"x").bytes()), Code::ZipName);
    assert_eq!(code(good().with_path("stray", b"x").bytes()), Code::ZipName);
    assert_eq!(code(good().with_path("archive2/x", b"x").bytes()), Code::ZipName);
    assert_eq!(code(good().without_root().bytes()), Code::ZipName);
}

#[test]
fn z42_the_version_is_required() {
    assert_eq!(code(good().without("version").bytes()), Code::RecordMissing);
    assert_eq!(names(&opened(good().renamed("version", ".data/version").bytes())), ["w"]);
}

#[test]
fn z43_versions_out_of_range_or_oddly_spelled_are_refused() {
    for version in ["0", "11", "-1", "+3", "3junk", " 3", "", "\n", "3\n\n", "18446744073709551616", "٣"] {
        assert_eq!(code(good().version(version.as_bytes()).bytes()), Code::ZipVersion, "{version:?}");
    }
    assert_eq!(code(good().version(&[b'1'; 1000]).bytes()), Code::ZipVersion);
    assert_eq!(code(good().with(".data/version", b"11").bytes()), Code::ZipVersion);
    for version in ["1", "10\n", "3"] {
        opened(good().version(version.as_bytes()).bytes());
    }
}

#[test]
fn z44_other_byte_orders_are_refused() {
    for order in ["middle", "", "little\n", "Big"] {
        assert_eq!(code(good().replace("byteorder", order.as_bytes()).bytes()), Code::ByteOrder, "{order}");
    }
    assert_eq!(code(good().replace("byteorder", &[b'b'; 500]).bytes()), Code::ByteOrder);
}

#[test]
fn z45_the_storage_alignment_member_is_ignored() {
    for alignment in ["0", "-1", "1e9", &"9".repeat(100)] {
        let checkpoint = opened(good().with(".storage_alignment", alignment.as_bytes()).bytes());
        assert_eq!(bytes_of(&checkpoint, "w"), f32s(&SIX));
    }
}

#[test]
fn z46_a_missing_storage_is_an_error_of_open() {
    let error = open(good().without("data/0").bytes()).unwrap_err();
    assert_eq!(error.code(), Code::RecordMissing);
    assert!(error.message().contains("archive/data/0"), "{error}");
}

#[test]
fn z47_storage_keys_are_plain_numbers() {
    for key in ["../version", "0/../1", "", "00", "-0", "+1", " 0", "0 ", "a", "٠", "0\0"] {
        assert_eq!(tensor_code(floats(&[6]).key(key)), Code::StorageKey, "{key:?}");
    }
    assert_eq!(tensor_code(floats(&[6]).key(&"1".repeat(1000))), Code::StorageKey);
    let with_key = |write: &dyn Fn(&mut Pickle)| {
        code_of(|p| {
            p.call("torch._utils", "_rebuild_tensor", |p| {
                p.tuple(|p| {
                    p.text("storage").global("torch", "FloatStorage");
                    write(p);
                    p.text("cpu").int(6);
                })
                .binpersid();
                p.int(0).ints(&[6]).ints(&[1]);
            });
        })
    };
    assert_eq!(
        with_key(&|p| {
            p.int(0);
        }),
        Code::StorageKey
    );
    assert_eq!(
        with_key(&|p| {
            p.none();
        }),
        Code::StorageKey
    );
}

#[test]
fn z48_z49_unreferenced_members_are_not_read() {
    let evil = pickle(|p| {
        p.call("os", "system", |p| {
            p.text("true");
        });
    });
    let built = good().with("inner.zip", &good().bytes()).with(".data/x.pkl", &evil).storage("9", &evil);
    let checkpoint = opened(built.bytes());
    assert_eq!(names(&checkpoint), ["w"]);
    assert!(!checkpoint.globals().unwrap().iter().any(|global| global.starts_with("os.")));
}

#[test]
fn z34_a_wrong_checksum_of_metadata_is_refused() {
    for name in ["data.pkl", "version", "byteorder"] {
        assert_eq!(code(good().wrong_crc(name).bytes()), Code::ZipCrc, "{name}");
    }
}

#[test]
fn z36_a_deflate_bomb_is_refused_before_it_inflates() {
    let mut options = Options::default();
    options.limits.pickle_bytes = 1 << 20;
    let bytes = good().replace("data.pkl", &vec![b'N'; 2 << 20]).deflated("data.pkl").bytes();
    assert!(bytes.len() < 10_000);
    let error = Checkpoint::from_bytes(Arc::new(bytes), options).unwrap_err();
    assert!(matches!(error.subject(), Subject::Limit { name: "pickle_bytes", .. }), "{error:?}");
}

#[test]
fn p06_bytes_after_the_pickle_are_refused_unless_ignored() {
    let mut bytes = torch_dict(&[("w", floats(&[6]))]);
    bytes.extend_from_slice(b"\x80\x02N.");
    let bytes = Archive::new(bytes).storage("0", &f32s(&SIX)).bytes();
    let error = open(bytes.clone()).unwrap_err();
    assert_eq!((error.code(), error.member()), (Code::TrailingData, Some("archive/data.pkl")));
    let options = Options::new().ignore_trailing(true);
    assert_eq!(Checkpoint::from_bytes(Arc::new(bytes), options).unwrap().len(), 1);
}

// Tensors and storages.

#[test]
fn t01_to_t05_a_storage_is_exactly_as_large_as_its_member() {
    for numel in [5, 7, -1, 0, i64::MAX, i64::MIN, (1 << 62) + 6] {
        let found = tensor_code(floats(&[1]).numel(numel));
        let expected = if numel == 0 { Code::StorageBounds } else { found };
        assert!(matches!(expected, Code::StorageBounds), "{numel}: {found:?}");
    }
}

#[test]
fn t06_a_storages_size_is_an_int() {
    let with = |write: &dyn Fn(&mut Pickle)| {
        code_of(|p| {
            p.call("torch._utils", "_rebuild_tensor", |p| {
                p.tuple(|p| {
                    p.text("storage").global("torch", "FloatStorage").text("0").text("cpu");
                    write(p);
                })
                .binpersid();
                p.int(0).ints(&[6]).ints(&[1]);
            });
        })
    };
    assert_eq!(
        with(&|p| {
            p.float(6.0);
        }),
        Code::PickleType
    );
    assert_eq!(
        with(&|p| {
            p.bool(true);
        }),
        Code::PickleType
    );
    assert_eq!(
        with(&|p| {
            p.long(&[1; 9]);
        }),
        Code::PickleType
    );
    assert_eq!(
        with(&|p| {
            p.none();
        }),
        Code::PickleType
    );
}

#[test]
fn t07_to_t12_a_tensor_must_be_inside_its_storage() {
    let whole = || floats(&[6]);
    for (shape, strides, offset, expected) in [
        (&[7][..], &[1][..], 0, Code::TensorBounds),
        (&[2, 3], &[4, 1], 0, Code::TensorBounds),
        (&[6], &[1], 1, Code::TensorBounds),
        (&[1], &[1], 6, Code::TensorBounds),
        (&[], &[], 6, Code::TensorBounds),
        (&[1], &[1], -1, Code::TensorBounds),
        (&[2], &[-1], 1, Code::TensorBounds),
        (&[-2], &[1], 0, Code::TensorShape),
        (&[1 << 40, 1 << 40], &[0, 0], 0, Code::TensorShape),
        (&[2], &[i64::MAX], i64::MAX, Code::TensorBounds),
        (&[3, 3], &[i64::MAX, i64::MAX], 0, Code::TensorBounds),
        (&[2, 3], &[1], 0, Code::TensorShape),
        (&[6], &[1, 1], 0, Code::TensorShape),
    ] {
        assert_eq!(tensor_code(whole().part(shape, strides, offset)), expected, "{shape:?} {strides:?}");
    }
}

#[test]
fn t13_t16_t17_empty_expanded_and_overlapping_tensors_are_accepted() {
    let built = archive(|p| {
        p.dict_of(|p| {
            p.text("empty").tensor(&floats(&[6]).part(&[0, i64::MAX], &[1, 1], 3));
            p.text("expanded").tensor(&floats(&[6]).part(&[1 << 62], &[0], 5));
            p.text("sliding").tensor(&floats(&[6]).part(&[4, 3], &[1, 1], 0));
        });
    });
    let checkpoint = opened(built.bytes());
    let error = checkpoint.tensor("expanded").unwrap().materialize(&Request::default()).unwrap_err();
    assert!(matches!(error.code(), Code::Limit | Code::Memory), "{error:?}");
    let sliding = [0.0, 1.0, 2.0, 1.0, 2.0, 3.0, 2.0, 3.0, 4.0, 3.0, 4.0, 5.0];
    assert_eq!(bytes_of(&checkpoint, "sliding"), f32s(&sliding));
    assert_eq!(bytes_of(&checkpoint, "empty"), b"");
}

#[test]
fn t15_rank_has_a_limit() {
    for rank in [65, 1_000_000] {
        let error = open(
            archive(|p| {
                p.tensor(&floats(&[6]).part(&vec![1; rank], &vec![1; rank], 0));
            })
            .bytes(),
        )
        .unwrap_err();
        assert!(matches!(error.subject(), Subject::Limit { name: "rank", .. }), "{error:?}");
    }
    let built = archive(|p| {
        p.tensor(&floats(&[6]).part(&[1; 64], &[1; 64], 0));
    });
    assert_eq!(bytes_of(&opened(built.bytes()), "tensor"), f32s(&[0.0]));
}

#[test]
fn t18_t19_sizes_are_tuples_of_ints() {
    let with = |write: &dyn Fn(&mut Pickle)| {
        code_of(|p| {
            p.call("torch._utils", "_rebuild_tensor", |p| {
                p.storage(DType::F32, "0", 6).int(0);
                write(p);
                p.ints(&[1]);
            });
        })
    };
    assert_eq!(
        with(&|p| {
            p.bool(true).op(0x85);
        }),
        Code::PickleType
    );
    assert_eq!(
        with(&|p| {
            p.float(1.0).op(0x85);
        }),
        Code::PickleType
    );
    assert_eq!(
        with(&|p| {
            p.long(&[0xff; 9]).raw(b"\x85");
        }),
        Code::TensorShape
    );
    assert_eq!(
        with(&|p| {
            p.long(&[1; 9]).op(0x85);
        }),
        Code::PickleType
    );
    assert_eq!(
        with(&|p| {
            p.list_of(|p| {
                p.int(1);
            });
        }),
        Code::PickleType
    );
    assert_eq!(
        with(&|p| {
            p.none();
        }),
        Code::PickleType
    );
}

#[test]
fn t20_t21_conflicting_descriptions_of_a_storage_are_refused() {
    let two = |one: Tensor, two: Tensor| {
        code_of(|p| {
            p.list_of(|p| {
                p.tensor(&one).tensor(&two);
            });
        })
    };
    let ints = Tensor::whole(DType::I32, &[6], "0");
    assert_eq!(two(floats(&[6]), ints.clone()), Code::StorageConflict);
    assert_eq!(two(floats(&[6]), Tensor::whole(DType::F64, &[3], "0")), Code::StorageConflict);
    assert_eq!(two(floats(&[6]), Tensor::whole(DType::F8E5M2, &[24], "0")), Code::StorageConflict);
    assert_eq!(two(floats(&[6]), floats(&[1]).numel(5)), Code::StorageConflict);
}

#[test]
fn t23_an_untyped_storage_holds_whole_elements_of_its_tensor() {
    let v3 = |nbytes: i64, offset: i64, dtype: &'static str| {
        archive(|p| {
            p.call("torch._utils", "_rebuild_tensor_v3", |p| {
                p.storage_in(("torch.storage", "UntypedStorage"), "1", nbytes).int(offset);
                p.ints(&[1]).ints(&[1]).bool(false).ordered_dict().global("torch", dtype);
            });
        })
        .storage("1", &vec![7; usize::try_from(nbytes).unwrap()])
        .bytes()
    };
    assert_eq!(code(v3(10, 0, "float32")), Code::StorageBounds);
    assert_eq!(code(v3(8, 2, "float32")), Code::TensorBounds);
    assert_eq!(opened(v3(8, 1, "float32")).len(), 1);
}

#[test]
fn t28_flags_must_be_bools_and_the_number_of_arguments_must_fit() {
    let call = |name: &'static str, write: &dyn Fn(&mut Pickle)| {
        code_of(|p| {
            p.call("torch._utils", name, |p| {
                p.place(&floats(&[6]));
                write(p);
            });
        })
    };
    assert_eq!(
        call("_rebuild_tensor_v2", &|p| {
            p.int(1).none();
        }),
        Code::PickleType
    );
    assert_eq!(
        call("_rebuild_tensor_v2", &|p| {
            p.bool(false);
        }),
        Code::PickleType
    );
    assert_eq!(
        call("_rebuild_tensor_v2", &|p| {
            p.bool(false).none().none().none();
        }),
        Code::PickleType
    );
    assert_eq!(
        call("_rebuild_tensor", &|p| {
            p.none();
        }),
        Code::PickleType
    );
    assert_eq!(
        call("_rebuild_tensor_v2", &|p| {
            p.bool(false).none().int(3);
        }),
        Code::PickleType
    );
    assert_eq!(
        call("_rebuild_tensor_v2", &|p| {
            p.bool(false).none().dict_of(|p| {
                p.text("conj").int(1);
            });
        }),
        Code::PickleType
    );
}

#[test]
fn t28_a_sign_that_a_dtype_does_not_have_is_refused_when_read() {
    for shape in [24, 0] {
        let checkpoint = opened(
            archive(|p| {
                p.tensor_with(&Tensor::whole(DType::Bool, &[24], "0").part(&[shape], &[1], 0), |p| {
                    p.dict_of(|p| {
                        p.text("neg").bool(true);
                    });
                });
            })
            .bytes(),
        );
        let error = checkpoint.tensor("tensor").unwrap().materialize(&Request::default()).unwrap_err();
        assert_eq!(error.code(), Code::DtypeUnsupported, "{shape}");
    }
}

#[test]
fn p56_persistent_ids_have_torchs_form_only() {
    let with = |write: &dyn Fn(&mut Pickle)| {
        code_of(|p| {
            write(p);
            p.binpersid();
        })
    };
    let storage = |p: &mut Pickle| {
        p.text("storage").global("torch", "FloatStorage").text("0").text("cpu").int(6);
    };
    assert_eq!(
        with(&|p| {
            p.text("storage");
        }),
        Code::PersistentId
    );
    assert_eq!(
        with(&|p| {
            p.none();
        }),
        Code::PersistentId
    );
    assert_eq!(
        with(&|p| {
            p.empty_tuple();
        }),
        Code::PersistentId
    );
    assert_eq!(
        with(&|p| {
            p.list_of(storage);
        }),
        Code::PersistentId
    );
    assert_eq!(
        with(&|p| {
            p.text("storage").op(0x85);
        }),
        Code::PersistentId
    );
    assert_eq!(
        with(&|p| {
            p.tuple(|p| {
                storage(p);
                p.none();
            });
        }),
        Code::PersistentId
    );
    let module = |p: &mut Pickle| {
        p.text("module").global("mine", "Net").text("net.py").text("class Net: pass").int(0);
    };
    assert_eq!(
        with(&|p| {
            p.tuple(module);
        }),
        Code::PersistentId
    );
    let class = |module: &'static str, name: &'static str| {
        with(&|p| {
            p.tuple(|p| {
                p.text("storage").global(module, name).text("0").text("cpu").int(6);
            });
        })
    };
    // C24: a class in another module is not a storage class, even if it has the name of one.
    assert_eq!(class("evil", "MyStorage"), Code::PersistentId);
    assert_eq!(class("evil", "FloatStorage"), Code::PersistentId);
    assert_eq!(class("torch", "MyStorage"), Code::PersistentId);
    assert_eq!(class("torch.sparse", "FloatStorage"), Code::PersistentId);
}

#[test]
fn a_tensor_in_place_of_a_storage_is_refused() {
    let on = |write: &dyn Fn(&mut Pickle)| {
        code_of(|p| {
            p.call("torch._utils", "_rebuild_tensor", |p| {
                write(p);
                p.int(0).ints(&[6]).ints(&[1]);
            });
        })
    };
    assert_eq!(
        on(&|p| {
            p.tensor(&floats(&[6]));
        }),
        Code::PersistentId
    );
    assert_eq!(
        on(&|p| {
            p.none();
        }),
        Code::PersistentId
    );
}

// Calls.

fn call(module: &'static str, name: &'static str) -> impl Fn(&mut Pickle) {
    move |p| {
        p.call(module, name, |p| {
            p.text("true");
        });
    }
}

#[test]
fn c01_to_c06_calls_by_every_opcode_are_kept_as_data() {
    let error = kept_and_refused(call("posix", "system"));
    assert_eq!((error.code(), global_of(&error)), (Code::DisallowedGlobal, "posix.system".to_owned()));
    let inst = kept_and_refused(|p| {
        p.mark().text("true").raw(b"iposix\nsystem\n");
    });
    assert_eq!(global_of(&inst), "posix.system");
    let obj = kept_and_refused(|p| {
        p.mark().global("posix", "system").text("true").op(b'o').pop().none();
    });
    assert_eq!(global_of(&obj), "posix.system");
    let newobj = kept_and_refused(|p| {
        p.new_object("mine", "Class");
    });
    assert_eq!(global_of(&newobj), "mine.Class");
    let newobj_ex = kept_and_refused(|p| {
        p.global("mine", "Class").empty_tuple().dict().op(0x92);
    });
    assert_eq!(global_of(&newobj_ex), "mine.Class");
    let build = kept_and_refused(|p| {
        p.new_object("mine", "Class").dict_of(|p| {
            p.text("__setstate__").global("posix", "system");
        });
        p.build();
    });
    assert_eq!(global_of(&build), "mine.Class");
}

#[test]
fn c07_a_call_whose_result_is_popped_is_reported() {
    let error = kept_and_refused(|p| {
        call("posix", "system")(p);
        p.pop().none();
    });
    assert_eq!(global_of(&error), "posix.system");
    let bytes = archive(|p| {
        call("posix", "system")(p);
        p.pop().none();
    });
    assert_eq!(opened(bytes.bytes()).opaque()[0].class, "posix.system");
}

#[test]
fn c10_arguments_are_tuples() {
    let code = code_of(|p| {
        p.global("posix", "system").list().op(b'R');
    });
    assert_eq!(code, Code::PickleType);
}

#[test]
fn c11_a_callable_from_the_memo_is_reported() {
    let error = kept_and_refused(|p| {
        p.global("posix", "system").put_at(7).pop().get(7).text("true").op(0x85).op(b'R');
    });
    assert_eq!(global_of(&error), "posix.system");
}

#[test]
fn c12_the_result_of_a_call_is_never_called() {
    let error = kept_and_refused(|p| {
        p.call("torch", "Size", |p| {
            p.ints(&[1]);
        })
        .empty_tuple()
        .op(b'R');
    });
    assert_eq!(error.code(), Code::DisallowedCall);
    let error = kept_and_refused(|p| {
        p.call("builtins", "getattr", |p| {
            p.global("builtins", "str").text("format");
        })
        .empty_tuple()
        .op(b'R');
    });
    assert_eq!((error.code(), global_of(&error)), (Code::DisallowedGlobal, "builtins.getattr".to_owned()));
}

#[test]
fn c13_c14_c15_c30_no_name_is_special() {
    for (module, name, found) in [
        ("pkgutil", "resolve_name", "pkgutil.resolve_name"),
        ("nt", "system", "nt.system"),
        ("os", "system", "os.system"),
        ("__builtin__", "eval", "builtins.eval"),
        ("commands", "getoutput", "subprocess.getoutput"),
        ("torch", "load", "torch.load"),
        ("numpy", "load", "numpy.load"),
        ("joblib", "load", "joblib.load"),
        ("picklescan.scanner", "scan", "picklescan.scanner.scan"),
        ("rustload", "open", "rustload.open"),
    ] {
        let error = kept_and_refused(call(module, name));
        assert_eq!((error.code(), global_of(&error).as_str()), (Code::DisallowedGlobal, found));
    }
    // A known function with unknown arguments.
    let error = kept_and_refused(call("torch.storage", "_load_from_bytes"));
    assert_eq!(
        (error.code(), global_of(&error).as_str()),
        (Code::DisallowedCall, "torch.storage._load_from_bytes")
    );
}

#[test]
fn c16_rebuild_from_type_takes_rebuild_functions_only() {
    for (module, name) in [("builtins", "eval"), ("torch._tensor", "_rebuild_from_type_v2")] {
        let bytes = archive(|p| {
            p.call("torch._tensor", "_rebuild_from_type_v2", |p| {
                p.global(module, name).global("torch", "Tensor");
                p.tuple(|p| {
                    p.text("1").tensor(&floats(&[6]));
                });
                p.none();
            });
        });
        assert_eq!(names(&opened(bytes.bytes())), ["args.2.1"]);
        let error = open_strict(bytes.bytes()).unwrap_err();
        assert_eq!(error.kind(), Kind::Disallowed);
    }
}

#[test]
fn c23_a_global_that_is_never_called_is_reported() {
    let error = kept_and_refused(|p| {
        p.global("antigravity", "fly");
    });
    assert_eq!((error.code(), global_of(&error)), (Code::DisallowedGlobal, "antigravity.fly".to_owned()));
}

#[test]
fn c25_c26_c27_c28_known_names_with_other_arguments_are_kept_as_data() {
    type Write = fn(&mut Pickle);
    let cases: [(&str, &str, Write); 12] = [
        ("torch", "FloatTensor", |p| {
            p.int(1 << 36);
        }),
        ("torch.cuda", "HalfTensor", |p| {
            p.int(1 << 36);
        }),
        ("torch", "Tensor", |p| {
            p.int(1 << 36);
        }),
        ("torch.storage", "UntypedStorage", |p| {
            p.int(1 << 36);
        }),
        ("torch", "FloatStorage", |p| {
            p.int(1 << 36);
        }),
        ("builtins", "bytearray", |p| {
            p.int(1 << 36);
        }),
        ("_codecs", "encode", |p| {
            p.text("x").text("idna");
        }),
        ("_codecs", "encode", |p| {
            p.text("x").text("zlib");
        }),
        ("collections", "Counter", |p| {
            p.text("aaaa");
        }),
        ("builtins", "set", |p| {
            p.text("aaaa");
        }),
        ("torch", "device", |p| {
            p.text("cpu; junk");
        }),
        ("torch", "device", |p| {
            p.dict();
        }),
    ];
    for (module, name, write) in cases {
        let error = kept_and_refused(|p| {
            p.call(module, name, write);
        });
        assert_eq!((error.code(), global_of(&error)), (Code::DisallowedCall, format!("{module}.{name}")));
    }
    // The forms of the same calls in honest files are accepted.
    let honest = archive(|p| {
        p.list_of(|p| {
            p.call("torch", "device", |p| {
                p.text("cuda:1");
            });
            p.call("torch", "device", |p| {
                p.text("cuda").int(0);
            });
            p.call("builtins", "slice", |p| {
                p.int(0).int(3).none();
            });
            p.call("builtins", "bytearray", |p| {
                p.text("x").text("latin1");
            });
            p.call("_codecs", "encode", |p| {
                p.text("ÿ").text("latin1");
            });
            p.call("collections", "Counter", |p| {
                p.dict();
            });
            p.global("torch", "qint8").global("torch", "per_channel_symmetric");
        });
    });
    open_strict(honest.bytes()).unwrap();
}

#[test]
fn c29_attributes_of_an_ordered_dict_do_not_change_its_items() {
    let checkpoint = opened(
        archive(|p| {
            p.ordered_dict().text("w").tensor(&floats(&[6])).op(b's').dict_of(|p| {
                p.text("items").global("builtins", "print").text("__class__").none();
            });
            p.build();
        })
        .bytes(),
    );
    assert_eq!(names(&checkpoint), ["w"]);
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
fn r01_r02_r03_shared_values_without_tensors_are_visited_once() {
    for kind in ["tuple", "list", "dict", "dup", "call", "opaque"] {
        assert_eq!(
            bomb(dag(60, kind, |p| {
                p.none();
            })),
            Ok(0),
            "{kind}"
        );
        assert_eq!(
            bomb(dag(60, kind, |p| {
                p.text("lol");
            })),
            Ok(0),
            "{kind}"
        );
    }
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
fn r11_values_that_contain_themselves_load() {
    for build in [
        (|p| {
            p.list().put_at(0).get(0).op(b'a');
        }) as fn(&mut Pickle),
        |p| {
            p.dict().put_at(0).int(1).get(0).op(b's');
        },
        |p| {
            p.list().put_at(0).get(0).op(0x85).put_at(1).op(b'a').pop().get(1);
        },
        |p| {
            p.ordered_dict().put_at(0).dict_of(|p| {
                p.text("me").get(0);
            });
            p.build();
        },
        |p| {
            p.new_object("mine", "A").put_at(0).get(0).op(b'b').get(0).op(b'a');
        },
    ] {
        assert_eq!(bomb(archive(build).bytes()), Ok(0));
    }
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
fn r13_many_views_of_one_storage_are_lazy() {
    let bytes = archive(|p| {
        p.tensor(&floats(&[6])).put_at(0).pop().list().mark();
        p.times(200_000, |p| {
            p.get(0);
        });
        p.op(b'e');
    });
    assert_eq!(bomb(bytes.bytes()), Ok(200_000));
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
fn a14_a15_the_content_decides_the_format_not_the_name() {
    let folder = tempfile::tempdir().unwrap();
    let as_safetensors = folder.path().join("model.safetensors");
    std::fs::write(&as_safetensors, good().bytes()).unwrap();
    let as_torch = folder.path().join("model.pt");
    std::fs::write(&as_torch, crate::support::st::File::new().tensor("v", "F32", &[1], &[0; 4]).bytes())
        .unwrap();
    let names_in = |path| names(&Checkpoint::open_all(&[path], Options::default()).unwrap());
    assert_eq!(names_in(as_safetensors), ["w"]);
    assert_eq!(names_in(as_torch), ["v"]);
}

#[test]
fn a16_text_files_are_an_unknown_format() {
    for text in ["<!DOCTYPE html><html></html>", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"]
    {
        let error = open(text.as_bytes().to_vec()).unwrap_err();
        assert_eq!(error.code(), Code::UnknownFormat);
    }
}

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
