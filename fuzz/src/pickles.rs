//! Mutates pickles opcode by opcode.

use rustload::Limits;
use rustload::internals::pickle::{Disasm, Opcode};

use crate::mutate::{self, Random};

/// Globals that the index interprets, a dangerous one and an unknown one.
const NAMES: &[(&str, &str)] = &[
    ("collections", "OrderedDict"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_tensor_v3"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_qtensor"),
    ("torch._utils", "_rebuild_sparse_tensor"),
    ("torch._tensor", "_rebuild_from_type_v2"),
    ("torch", "FloatStorage"),
    ("torch", "Size"),
    ("torch", "device"),
    ("_codecs", "encode"),
    ("builtins", "set"),
    ("builtins", "bytearray"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("posix", "system"),
    ("somewhere", "Else"),
];

/// Changes one to four opcodes of the pickle that starts at `start`; the bytes after it stay unchanged.
pub(crate) fn mutate(data: &[u8], start: usize, random: &mut Random) -> Vec<u8> {
    let (mut ops, end) = split(data, start);
    if ops.is_empty() {
        return mutate::bytes(data, random);
    }
    for _ in 0..=random.below(4) {
        let at = random.below(ops.len());
        match random.below(8) {
            0 if ops.len() > 1 => drop(ops.remove(at)),
            1 => ops.insert(at, ops[at].clone()),
            2 => {
                let other = random.below(ops.len());
                ops.swap(at, other);
            }
            3 => {
                let other = ops[random.below(ops.len())].clone();
                ops.insert(at, other);
            }
            4 => ops[at] = mutate::bytes(&ops[at], random),
            _ => ops.insert(at, random_opcode(random)),
        }
    }
    let before = data.get(..start).unwrap_or_default();
    let after = data.get(end..).unwrap_or_default();
    [before, &ops.concat(), after].concat()
}

/// The bytes of each opcode, up to STOP or the first truncated one, and the offset of their end.
pub(crate) fn split(data: &[u8], start: usize) -> (Vec<Vec<u8>>, usize) {
    let limits = Limits::default();
    let mut disasm = Disasm::lenient(data, start, &limits);
    let (mut ops, mut begin) = (Vec::new(), start);
    while let Some(Ok(_)) = disasm.next() {
        let end = disasm.position();
        ops.push(data[begin..end].to_vec());
        begin = end;
    }
    (ops, begin)
}

/// A random opcode with a random argument.
fn random_opcode(random: &mut Random) -> Vec<u8> {
    let opcode = Opcode::ALL[random.below(Opcode::ALL.len())];
    let (module, name) = NAMES[random.below(NAMES.len())];
    let number = mutate::number(random);
    let mut out = vec![opcode.byte()];
    match opcode {
        Opcode::Global | Opcode::Inst => {
            out.extend_from_slice(format!("{module}\n{name}\n").as_bytes());
        }
        Opcode::BinGet | Opcode::BinPut | Opcode::BinInt1 | Opcode::Ext1 => {
            out.push(number.to_le_bytes()[0] % 40)
        }
        Opcode::Proto => out.push(number.to_le_bytes()[0] % 7),
        Opcode::BinInt2 | Opcode::Ext2 => out.extend_from_slice(&number.to_le_bytes()[..2]),
        Opcode::BinInt | Opcode::Ext4 | Opcode::LongBinGet | Opcode::LongBinPut => {
            out.extend_from_slice(&number.to_le_bytes()[..4]);
        }
        Opcode::BinFloat | Opcode::Frame => out.extend_from_slice(&number.to_le_bytes()),
        Opcode::Int | Opcode::Float | Opcode::Get | Opcode::Put => {
            out.extend_from_slice(format!("{number}\n").as_bytes());
        }
        Opcode::Long => out.extend_from_slice(format!("{number}L\n").as_bytes()),
        Opcode::Long1 => {
            let len = random.below(9);
            out.push(u8::try_from(len).expect("small"));
            out.extend_from_slice(&number.to_le_bytes()[..len]);
        }
        Opcode::ShortBinUnicode | Opcode::ShortBinString | Opcode::ShortBinBytes => {
            out.push(u8::try_from(name.len()).expect("small"));
            out.extend_from_slice(name.as_bytes());
        }
        Opcode::BinUnicode | Opcode::BinString | Opcode::BinBytes | Opcode::Long4 => {
            out.extend_from_slice(&u32::try_from(module.len()).expect("small").to_le_bytes());
            out.extend_from_slice(module.as_bytes());
        }
        Opcode::BinUnicode8 | Opcode::BinBytes8 | Opcode::ByteArray8 => {
            out.extend_from_slice(&(module.len() as u64).to_le_bytes());
            out.extend_from_slice(module.as_bytes());
        }
        Opcode::String => out.extend_from_slice(format!("'{name}'\n").as_bytes()),
        Opcode::Unicode | Opcode::PersId => out.extend_from_slice(format!("{name}\n").as_bytes()),
        _ => {}
    }
    out
}
