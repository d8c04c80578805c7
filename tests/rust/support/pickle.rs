//! A pickle assembler: opcodes as methods, and the forms that torch.save writes.
//!
//! With `memoizing`, strings, globals and tuples get the same memo entries as in CPython's pickler, so that a state dict is
//! byte-equal to torch's (a test compares it with a real file).

use std::collections::HashMap;

use rustload::DType;

/// A pickle under construction; it starts with PROTO 2.
#[derive(Clone)]
pub(crate) struct Pickle {
    bytes: Vec<u8>,
    memoizing: bool,
    next: u32,
    /// Memo numbers of strings and globals, by their bytes.
    known: HashMap<Vec<u8>, u32>,
}

/// The arguments of `_rebuild_tensor_v2` or `_v3` for a tensor.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<i64>,
    pub(crate) strides: Vec<i64>,
    pub(crate) offset: i64,
    pub(crate) key: String,
    /// The number of elements of the storage (bytes for an untyped one).
    pub(crate) numel: i64,
}

impl Tensor {
    /// A C-contiguous tensor that covers the whole storage `key`.
    pub(crate) fn whole(dtype: DType, shape: &[i64], key: &str) -> Tensor {
        let mut strides = vec![1; shape.len()];
        for at in (1..shape.len()).rev() {
            strides[at - 1] = strides[at] * shape[at].max(1);
        }
        let numel: i64 = shape.iter().product();
        let numel = if storage_class(dtype).is_some() { numel } else { numel * dtype.itemsize() as i64 };
        Tensor { dtype, shape: shape.to_vec(), strides, offset: 0, key: key.to_owned(), numel }
    }

    /// A part of a storage of `numel` elements.
    pub(crate) fn part(self, shape: &[i64], strides: &[i64], offset: i64) -> Tensor {
        Tensor { shape: shape.to_vec(), strides: strides.to_vec(), offset, ..self }
    }
}

/// torch.save's storage class for this dtype; `None` if it writes an untyped storage.
pub(crate) fn storage_class(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F64 => "DoubleStorage",
        DType::F32 => "FloatStorage",
        DType::F16 => "HalfStorage",
        DType::BF16 => "BFloat16Storage",
        DType::I64 => "LongStorage",
        DType::I32 => "IntStorage",
        DType::I16 => "ShortStorage",
        DType::I8 => "CharStorage",
        DType::U8 => "ByteStorage",
        DType::Bool => "BoolStorage",
        DType::C64 => "ComplexFloatStorage",
        DType::C128 => "ComplexDoubleStorage",
        _ => return None,
    })
}

/// A whole pickle: PROTO 2, what `build` writes, STOP.
pub(crate) fn pickle(build: impl FnOnce(&mut Pickle)) -> Vec<u8> {
    let mut pickle = Pickle::new();
    build(&mut pickle);
    pickle.stop()
}

/// The pickle of a plain dict of tensors, as `torch.save({...})` writes it.
pub(crate) fn torch_dict(entries: &[(&str, Tensor)]) -> Vec<u8> {
    let mut p = Pickle::memoizing();
    p.dict().put();
    p.entries(entries);
    p.stop()
}

/// The pickle of an `OrderedDict` with `_metadata`, as `torch.save(module.state_dict())` writes it.
pub(crate) fn torch_state_dict(entries: &[(&str, Tensor)]) -> Vec<u8> {
    let mut p = Pickle::memoizing();
    p.ordered_dict();
    p.entries(entries);
    p.dict().put().text("_metadata").ordered_dict();
    p.mark().text("").dict().put().text("version").int(1).op(b's').op(b'u');
    p.op(b's').build();
    p.stop()
}

impl Pickle {
    pub(crate) fn new() -> Pickle {
        Pickle { bytes: vec![0x80, 2], memoizing: false, next: 0, known: HashMap::new() }
    }

    /// An assembler that memoizes as CPython's pickler does.
    pub(crate) fn memoizing() -> Pickle {
        Pickle { memoizing: true, ..Pickle::new() }
    }

    /// The bytes with STOP.
    pub(crate) fn stop(mut self) -> Vec<u8> {
        self.bytes.push(b'.');
        self.bytes
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Pickle {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(crate) fn op(&mut self, opcode: u8) -> &mut Pickle {
        self.raw(&[opcode])
    }

    pub(crate) fn times(&mut self, count: usize, build: impl Fn(&mut Pickle)) -> &mut Pickle {
        for _ in 0..count {
            build(self);
        }
        self
    }

    pub(crate) fn none(&mut self) -> &mut Pickle {
        self.op(b'N')
    }

    pub(crate) fn bool(&mut self, value: bool) -> &mut Pickle {
        self.op(if value { 0x88 } else { 0x89 })
    }

    /// BININT1, BININT2, BININT or LONG1, as CPython chooses.
    pub(crate) fn int(&mut self, value: i64) -> &mut Pickle {
        if let Ok(value) = u8::try_from(value) {
            self.op(b'K').op(value)
        } else if let Ok(value) = u16::try_from(value) {
            self.op(b'M').raw(&value.to_le_bytes())
        } else if let Ok(value) = i32::try_from(value) {
            self.op(b'J').raw(&value.to_le_bytes())
        } else {
            let bytes = value.to_le_bytes();
            let sign = if value < 0 { 0xff } else { 0 };
            let mut len = 8;
            while len > 1 && bytes[len - 1] == sign && (bytes[len - 2] >= 0x80) == (value < 0) {
                len -= 1;
            }
            self.op(0x8a).op(len as u8).raw(&bytes[..len])
        }
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Pickle {
        self.once(text.as_bytes().to_vec(), |p| {
            p.op(b'X').raw(&(text.len() as u32).to_le_bytes()).raw(text.as_bytes());
        })
    }

    pub(crate) fn global(&mut self, module: &str, name: &str) -> &mut Pickle {
        let line = format!("c{module}\n{name}\n").into_bytes();
        self.once(line.clone(), |p| {
            p.raw(&line);
        })
    }

    pub(crate) fn empty_tuple(&mut self) -> &mut Pickle {
        self.op(b')')
    }

    /// A tuple of what `build` writes: MARK ... TUPLE.
    pub(crate) fn tuple(&mut self, build: impl FnOnce(&mut Pickle)) -> &mut Pickle {
        self.mark();
        build(self);
        self.op(b't').put()
    }

    /// A tuple of ints in the form that CPython chooses.
    pub(crate) fn ints(&mut self, values: &[i64]) -> &mut Pickle {
        match values.len() {
            0 => return self.empty_tuple(),
            4.. => {
                self.mark();
            }
            _ => {}
        }
        for &value in values {
            self.int(value);
        }
        self.op([b')', 0x85, 0x86, 0x87, b't'][values.len().min(4)]).put()
    }

    pub(crate) fn mark(&mut self) -> &mut Pickle {
        self.op(b'(')
    }

    pub(crate) fn list(&mut self) -> &mut Pickle {
        self.op(b']')
    }

    pub(crate) fn dict(&mut self) -> &mut Pickle {
        self.op(b'}')
    }

    /// A list of what `build` writes.
    pub(crate) fn list_of(&mut self, build: impl FnOnce(&mut Pickle)) -> &mut Pickle {
        self.list().put().mark();
        build(self);
        self.op(b'e')
    }

    /// A dict of what `build` writes, keys and values alternately.
    pub(crate) fn dict_of(&mut self, build: impl FnOnce(&mut Pickle)) -> &mut Pickle {
        self.dict().put().mark();
        build(self);
        self.op(b'u')
    }

    /// `collections.OrderedDict()`.
    pub(crate) fn ordered_dict(&mut self) -> &mut Pickle {
        self.global("collections", "OrderedDict").empty_tuple().reduce()
    }

    pub(crate) fn reduce(&mut self) -> &mut Pickle {
        self.op(b'R').put()
    }

    /// `module.name(*args)` by REDUCE.
    pub(crate) fn call(&mut self, module: &str, name: &str, args: impl FnOnce(&mut Pickle)) -> &mut Pickle {
        self.global(module, name).tuple(args).reduce()
    }

    /// `module.name.__new__(module.name)` by NEWOBJ.
    pub(crate) fn new_object(&mut self, module: &str, name: &str) -> &mut Pickle {
        self.global(module, name).empty_tuple().op(0x81).put()
    }

    pub(crate) fn build(&mut self) -> &mut Pickle {
        self.op(b'b')
    }

    pub(crate) fn binpersid(&mut self) -> &mut Pickle {
        self.op(b'Q')
    }

    pub(crate) fn pop(&mut self) -> &mut Pickle {
        self.op(b'0')
    }

    pub(crate) fn dup(&mut self) -> &mut Pickle {
        self.op(b'2')
    }

    /// PUT with the given memo number.
    pub(crate) fn put_at(&mut self, number: u32) -> &mut Pickle {
        match u8::try_from(number) {
            Ok(number) => self.op(b'q').op(number),
            Err(_) => self.op(b'r').raw(&number.to_le_bytes()),
        }
    }

    pub(crate) fn get(&mut self, number: u32) -> &mut Pickle {
        match u8::try_from(number) {
            Ok(number) => self.op(b'h').op(number),
            Err(_) => self.op(b'j').raw(&number.to_le_bytes()),
        }
    }

    /// A memo entry for what was just written, if this assembler memoizes.
    pub(crate) fn put(&mut self) -> &mut Pickle {
        if self.memoizing {
            self.put_at(self.next);
            self.next += 1;
        }
        self
    }

    fn once(&mut self, spelling: Vec<u8>, write: impl FnOnce(&mut Pickle)) -> &mut Pickle {
        if let Some(&number) = self.known.get(&spelling) {
            return self.get(number);
        }
        write(self);
        if self.memoizing {
            self.known.insert(spelling, self.next);
        }
        self.put()
    }

    /// A persistent id: `('storage', module.class, key, location, numel)`.
    pub(crate) fn storage_in(&mut self, class: (&str, &str), key: &str, numel: i64) -> &mut Pickle {
        self.tuple(|p| {
            p.text("storage").global(class.0, class.1).text(key).text("cpu").int(numel);
        })
        .binpersid()
    }

    /// A storage of the dtype's class, or an untyped one of `numel` bytes.
    pub(crate) fn storage(&mut self, dtype: DType, key: &str, numel: i64) -> &mut Pickle {
        match storage_class(dtype) {
            Some(class) => self.storage_in(("torch", class), key, numel),
            None => self.storage_in(("torch.storage", "UntypedStorage"), key, numel),
        }
    }

    /// Storage, offset, size and stride: the first arguments of every rebuild function.
    pub(crate) fn place(&mut self, tensor: &Tensor) -> &mut Pickle {
        self.storage(tensor.dtype, &tensor.key, tensor.numel).int(tensor.offset);
        self.ints(&tensor.shape).ints(&tensor.strides)
    }

    /// `_rebuild_tensor_v2(...)`, or `_v3` if torch writes that for the dtype.
    pub(crate) fn tensor(&mut self, tensor: &Tensor) -> &mut Pickle {
        self.tensor_with(tensor, |_| {})
    }

    /// The same with more arguments at the end.
    pub(crate) fn tensor_with(&mut self, tensor: &Tensor, more: impl FnOnce(&mut Pickle)) -> &mut Pickle {
        let typed = storage_class(tensor.dtype).is_some();
        let function = if typed { "_rebuild_tensor_v2" } else { "_rebuild_tensor_v3" };
        self.call("torch._utils", function, |p| {
            p.place(tensor).bool(false).ordered_dict();
            if !typed {
                p.global("torch", tensor.dtype.name());
            }
            more(p);
        })
    }

    /// Keys and tensors between MARK and SETITEMS; a single pair by SETITEM, as CPython writes it.
    pub(crate) fn entries(&mut self, entries: &[(&str, Tensor)]) -> &mut Pickle {
        match entries {
            [] => return self,
            [_] => {}
            _ => {
                self.mark();
            }
        }
        for (name, tensor) in entries {
            self.text(name).tensor(tensor);
        }
        self.op(if entries.len() == 1 { b's' } else { b'u' })
    }
}
