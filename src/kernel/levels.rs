//! Every SIMD level of this CPU compared with the generic one, bit for bit, NaN payloads included.

use std::process::Command;

use super::{Axis, Cast, Grid, Level, Overflow, convert, gather, swap_bytes_with_level, transpose};
use crate::dtype::DType;
use crate::kernel::arch::{CACHE_LINE_BYTES, Groups, Lookup};
use crate::kernel::cast::size;
use crate::kernel::scaling::rescale_all;

const GENERIC: usize = 0;

/// The levels above the generic one; prints those that this CPU lacks.
fn fast_levels() -> Vec<Level> {
    let levels = Level::available();
    for name in ["avx2", "avx512"] {
        if !levels.iter().any(|level| level.name() == name) {
            eprintln!("skipped: this CPU has no {name}");
        }
    }
    levels[GENERIC + 1..].to_vec()
}

fn generic() -> Level {
    Level::available()[GENERIC]
}

/// Bytes with all bits in use, the same on every run.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 11_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// The f32 values where rounding changes: every exponent with the mantissas around the ties of 1 to 16 bits. They include
/// subnormal numbers, the edges of overflow, infinities and NaN of both signs.
fn special_floats() -> Vec<f32> {
    let mut mantissas = vec![0, 1, 0x7f_ffff, 0x40_0000, 0x40_0001];
    for bits in 1..=16 {
        for top in [0, 1, 2, 3, (1 << bits) - 2, (1 << bits) - 1] {
            let tie = ((top % (1 << bits)) << (23 - bits)) | 1 << (22 - bits);
            mantissas.extend([tie - 1, tie, tie + 1]);
        }
    }
    let signs_and_exponents = 0..=0x1ff_u32;
    signs_and_exponents
        .flat_map(|upper| mantissas.iter().map(move |mantissa| f32::from_bits(upper << 23 | mantissa)))
        .collect()
}

/// The special values of a dtype, followed by noise.
fn special_values(dtype: DType) -> Vec<u8> {
    let floats = special_floats();
    let mut bytes: Vec<u8> = match dtype {
        DType::F16 | DType::BF16 => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
        DType::F32 | DType::C64 => floats.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::F64 | DType::C128 => {
            let wide = floats.iter().map(|&value| f64::from(value));
            wide.flat_map(|value| [value.next_down(), value, value.next_up()])
                .flat_map(f64::to_le_bytes)
                .collect()
        }
        _ => (0..=u8::MAX).cycle().take(16 * 256).collect(),
    };
    bytes.extend(noise(64 * 256));
    bytes
}

fn overflows() -> [Overflow; 2] {
    [Overflow::Nan, Overflow::Saturate]
}

#[test]
fn every_level_converts_as_the_generic_one() {
    for level in fast_levels() {
        for &from in DType::ALL {
            let src = special_values(from);
            let src = &src[..src.len() / size(from) * size(from)];
            for &to in DType::ALL {
                for overflow in overflows() {
                    let Ok(oracle) = Cast::with_level(generic(), from, to, overflow) else { continue };
                    let cast = Cast::with_level(level, from, to, overflow).unwrap();
                    let mut expected = vec![0xaa; src.len() / size(from) * size(to)];
                    let mut got = expected.clone();
                    convert(oracle, src, &mut expected).unwrap();
                    convert(cast, src, &mut got).unwrap();
                    if let Some(at) = (0..got.len() / size(to)).find(|at| {
                        let range = at * size(to)..(at + 1) * size(to);
                        got[range.clone()] != expected[range]
                    }) {
                        let element = |bytes: &[u8], size: usize| bytes[at * size..][..size].to_vec();
                        panic!(
                            "{level} {cast:?} {overflow:?} of {:02x?}: {:02x?}, generic {:02x?}",
                            element(src, size(from)),
                            element(&got, size(to)),
                            element(&expected, size(to))
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn every_level_converts_every_length_at_every_alignment() {
    for level in fast_levels() {
        for &from in DType::ALL {
            for &to in DType::ALL {
                let Ok(oracle) = Cast::with_level(generic(), from, to, Overflow::Nan) else { continue };
                let cast = Cast::with_level(level, from, to, Overflow::Nan).unwrap();
                let src = noise(131 * size(from));
                for len in 0..=130 {
                    let skew = len % 7;
                    let src = &src[skew.min(size(from))..][..len * size(from)];
                    let mut expected = vec![0xaa; len * size(to) + 16];
                    let mut got = expected.clone();
                    convert(oracle, src, &mut expected[skew..][..len * size(to)]).unwrap();
                    convert(cast, src, &mut got[skew..][..len * size(to)]).unwrap();
                    assert!(got == expected, "{level} {cast:?}, {len} elements at {skew}");
                }
            }
        }
    }
}

/// Groups of any length, of which the first is not whole, in bytes that end within one.
#[test]
fn every_level_looks_codes_up_as_the_generic_one() {
    let (bytes, tables) = (noise(130), noise(32 * 40));
    let tables = tables.as_chunks().0;
    for (level, is_high_first) in
        Level::available().into_iter().flat_map(|level| [(level, false), (level, true)])
    {
        for (width, skip) in (8..=40).flat_map(|width| [(width, 0), (width, 1), (width, width - 1)]) {
            for count in [0, 1, 7, 8, 9, 63, 64, 130] {
                let bytes = &bytes[..count];
                let mut out = vec![[0xaa; 4]; count + 1];
                let lens = (width - skip, width);
                level.look_up(Lookup { bytes, is_high_first, lens, out: &mut out }, tables);
                for (at, (byte, out)) in bytes.iter().zip(&out).enumerate() {
                    let table = &tables[(at + skip) / width];
                    let [low, high] =
                        [byte & 15, byte >> 4].map(|code| table.as_chunks::<2>().0[usize::from(code)]);
                    let expected = if is_high_first { [high, low] } else { [low, high] };
                    assert_eq!(out.as_chunks::<2>().0, expected, "{level} {width} {skip} {at}");
                }
                assert_eq!(out[count], [0xaa; 4]);
            }
        }
    }
}

/// Numbers that are scaled and rounded where they are looked up are those that are looked up in tables.
#[test]
fn every_level_scales_numbers_that_it_looks_up_as_the_generic_one() {
    let (bytes, floats) = (noise(130), noise(4 * (16 + 2 * 18)));
    let floats: Vec<f32> = floats.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float)).collect();
    let (numbers, factors) = floats.split_first_chunk().unwrap();
    let (scales, zeros) = factors.split_at(18);
    let kinds = [DType::BF16, DType::F16].into_iter().flat_map(|to| [(to, None), (to, Some(zeros))]);
    for ((dtype, zeros), non_temporal) in kinds.flat_map(|kind| [(kind, false), (kind, true)]) {
        let groups = Groups { numbers, zeros, scales, dtype, non_temporal };
        let mut scaled = vec![[0.0; 16]; scales.len()];
        rescale_all(numbers, zeros, scales, &mut scaled);
        let mut tables = vec![[0; 32]; scales.len()];
        let cast = Cast::with_level(generic(), DType::F32, dtype, Overflow::Nan).unwrap();
        convert(cast, bytemuck::cast_slice(&scaled), tables.as_flattened_mut()).unwrap();
        for (level, width) in fast_levels().into_iter().flat_map(|level| (8..=40).map(move |at| (level, at)))
        {
            for (is_high_first, skip) in [(false, 0), (true, 0), (false, width - 1), (true, 1)] {
                let lookup = |out| {
                    let lens = (width - skip, width);
                    Lookup { bytes: &bytes, is_high_first, lens, out }
                };
                let (mut expected, mut got) = (vec![[0; 4]; bytes.len()], vec![[0; 4]; bytes.len() + 16]);
                // Non-temporal stores need whole cache lines.
                let line = got.as_ptr().align_offset(64);
                let got = &mut got[line..][..bytes.len()];
                if level.scale_and_look_up(lookup(got), groups) {
                    generic().look_up(lookup(&mut expected), &tables);
                    assert_eq!(got, expected, "{level} {dtype} {width} {skip}");
                }
            }
        }
    }
}

#[test]
fn every_level_swaps_bytes_as_the_generic_one() {
    for level in fast_levels() {
        for unit in 0..=16 {
            for len in (0..=130).chain([1000, 1001]) {
                let mut expected = noise(len + 1);
                let mut got = expected.clone();
                swap_bytes_with_level(generic(), unit, &mut expected[1..]);
                swap_bytes_with_level(level, unit, &mut got[1..]);
                assert_eq!(got, expected, "{level}, unit {unit}, {len} bytes");
            }
        }
    }
}

#[test]
fn every_level_transposes_as_the_generic_one() {
    let pairs = [
        (DType::U8, DType::U8),
        (DType::Bool, DType::Bool),
        (DType::F32, DType::F8E4M3Fn),
        (DType::BF16, DType::BF16),
        (DType::F32, DType::BF16),
        (DType::F16, DType::BF16),
        (DType::F32, DType::F32),
        (DType::F16, DType::F32),
        (DType::I64, DType::I64),
        (DType::F32, DType::F64),
        (DType::C128, DType::C128),
    ];
    let sizes = [8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 257, 300];
    for level in fast_levels() {
        for (from, to) in pairs {
            let oracle = Cast::with_level(generic(), from, to, Overflow::Nan).unwrap();
            let cast = Cast::with_level(level, from, to, Overflow::Nan).unwrap();
            for rows in sizes {
                for columns in sizes.into_iter().chain([2049]) {
                    // Gaps on both sides, and a misaligned destination.
                    let (src_pitch, dst_pitch) = (columns + rows % 3, rows + columns % 4);
                    let axes = [
                        Axis { size: rows, src_stride: src_pitch, dst_stride: 1 },
                        Axis { size: columns, src_stride: 1, dst_stride: dst_pitch },
                    ];
                    let src = noise(rows * src_pitch * size(from));
                    let mut expected = vec![0xaa; columns * dst_pitch * size(to) + 3];
                    let mut got = expected.clone();
                    gather(oracle, &src, &mut expected[3..], &axes).unwrap();
                    gather(cast, &src, &mut got[3..], &axes).unwrap();
                    assert!(got == expected, "{level} {cast:?} {axes:?}");
                }
            }
        }
    }
}

/// Matrices of few columns, whose rows are shorter than a vector, as [`transpose`] gets them; the last row ends where the source does.
#[test]
fn every_level_transposes_short_rows() {
    let pairs = [(DType::U8, DType::U8), (DType::BF16, DType::BF16), (DType::F32, DType::F32)];
    for (from, to) in pairs.into_iter().chain([(DType::F64, DType::F64), (DType::F32, DType::BF16)]) {
        for level in Level::available() {
            let cast = Cast::with_level(level, from, to, Overflow::Nan).unwrap();
            for (columns, gap) in (1..=33).flat_map(|columns| [(columns, 0), (columns, 1)]) {
                let (rows, pitch) = (300 + columns % 7, columns + gap);
                let src = noise(((rows - 1) * pitch + columns) * size(from));
                let (mut converted, mut got) = (vec![0; src.len() / size(from) * size(to)], Vec::new());
                convert(cast, &src, &mut converted).unwrap();
                got.resize(rows * columns * size(to), 0);
                let width = rows * size(to);
                let grid = Grid::new(&mut got, columns, width, width).unwrap();
                transpose(cast, &src, pitch, grid, &mut Vec::new()).unwrap();
                for (at, element) in got.chunks(size(to)).enumerate() {
                    let from = (at % rows * pitch + at / rows) * size(to);
                    assert!(*element == converted[from..][..size(to)], "{level} {cast:?} {columns} {gap}");
                }
            }
        }
    }
}

/// Large enough for non-temporal stores; the destination is aligned to cache lines, and misaligned.
#[test]
fn non_temporal_stores_do_not_change_a_transpose() {
    for level in fast_levels() {
        for (from, to) in [(DType::F32, DType::BF16), (DType::U8, DType::U8), (DType::F32, DType::F64)] {
            let oracle = Cast::with_level(generic(), from, to, Overflow::Nan).unwrap();
            let cast = Cast::with_level(level, from, to, Overflow::Nan).unwrap().with_non_temporal_stores();
            for (rows, columns, pitch) in [(300, 70, 256 << 10), (257, 70, (256 << 10) + 5)] {
                let axes = [
                    Axis { size: rows, src_stride: columns, dst_stride: 1 },
                    Axis { size: columns, src_stride: 1, dst_stride: pitch },
                ];
                let src = noise(rows * columns * size(from));
                let len = columns * pitch * size(to);
                let mut expected = vec![0xaa; len];
                gather(oracle, &src, &mut expected, &axes).unwrap();
                for skew in [0, 1] {
                    let mut got = vec![0xaa; len + CACHE_LINE_BYTES + 1];
                    let start = got.as_ptr().align_offset(CACHE_LINE_BYTES) + skew;
                    let got = &mut got[start..start + len];
                    gather(cast, &src, got, &axes).unwrap();
                    assert!(*got == *expected, "{level} {cast:?} {axes:?} {skew}");
                }
            }
        }
    }
}

/// Rows of any length at any alignment on both sides, in a destination that is large enough for non-temporal stores.
#[test]
fn non_temporal_stores_do_not_change_copied_rows() {
    for level in Level::available() {
        let cast = Cast::with_level(level, DType::U8, DType::U8, Overflow::Nan).unwrap();
        for width in (256..=330).chain([1000, 4096, 4099]) {
            let (rows, src_pitch, dst_pitch) = (5, width + 7, (2 << 20) + width % 3);
            let axes = [
                Axis { size: rows, src_stride: src_pitch, dst_stride: dst_pitch },
                Axis { size: width, src_stride: 1, dst_stride: 1 },
            ];
            let src = noise(rows * src_pitch);
            let mut got = vec![0xaa; rows * dst_pitch];
            gather(cast.with_non_temporal_stores(), &src, &mut got, &axes).unwrap();
            for (row, found) in got.chunks(dst_pitch).enumerate() {
                assert!(found[..width] == src[row * src_pitch..][..width], "{level} {width} {row}");
                assert!(found[width..].iter().all(|&byte| byte == 0xaa), "{level} {width} {row}");
            }
        }
    }
}

#[test]
fn the_generic_level_is_first_and_levels_are_sorted() {
    let levels = Level::available();
    assert_eq!((levels[0].name(), levels[0]), ("generic", generic()));
    assert!(levels.is_sorted());
}

/// The environment variable is read once per process, so each value is tested in a process of its own.
#[test]
fn rustload_isa_forces_a_level() {
    const CHILD: &str = "kernel::levels::the_level_used_is_printed";
    let used = |value: Option<&str>| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", CHILD, "--nocapture", "--ignored"]).env_remove("RUSTLOAD_ISA");
        if let Some(value) = value {
            child.env("RUSTLOAD_ISA", value);
        }
        let stdout = String::from_utf8(child.output().unwrap().stdout).unwrap();
        let (_, after) = stdout.split_once("level used: <").expect(&stdout);
        after.split_once('>').unwrap().0.to_owned()
    };
    let levels = Level::available();
    let highest = levels.last().unwrap().name();
    for level in &levels {
        assert_eq!(used(Some(level.name())), level.name());
    }
    assert_eq!(used(None), highest);
    assert_eq!(used(Some("avx512")), highest); // or the highest one below it
    for unknown in ["", "AVX2", "neon"] {
        assert_eq!(used(Some(unknown)), highest);
    }
}

#[test]
#[ignore = "the child of rustload_isa_forces_a_level"]
fn the_level_used_is_printed() {
    println!("level used: <{}>", Level::used());
}
