//! Rows with strided elements: gathered into a contiguous block before the cast, scattered after it.

use super::cast::Cast;

/// Elements per block.
const BLOCK_ELEMENTS: usize = 256;
/// The widest element, a complex128, in bytes.
const ELEMENT_MAX_BYTES: usize = 16;

/// The two buffers of [`row`], allocated once per copy.
pub(super) struct Scratch {
    packed: [u8; BLOCK_ELEMENTS * ELEMENT_MAX_BYTES],
    converted: [u8; BLOCK_ELEMENTS * ELEMENT_MAX_BYTES],
}

impl Scratch {
    /// Zeroed buffers.
    pub(super) fn new() -> Scratch {
        Scratch {
            packed: [0; BLOCK_ELEMENTS * ELEMENT_MAX_BYTES],
            converted: [0; BLOCK_ELEMENTS * ELEMENT_MAX_BYTES],
        }
    }
}

/// Elements that are `stride` elements apart, the first at the start of `bytes`.
pub(super) struct Strided<B> {
    /// The bytes, at least to the end of the last element.
    pub(super) bytes: B,
    /// The distance from one element to the next, in elements.
    pub(super) stride: usize,
}

/// Converts `count` elements from one stride to another; both sides must hold them.
pub(super) fn row(
    cast: Cast,
    src: Strided<&[u8]>,
    dst: Strided<&mut [u8]>,
    count: usize,
    scratch: &mut Scratch,
) {
    let (src_size, dst_size) = (cast.src_size(), cast.dst_size());
    match (src.stride, dst.stride) {
        (1, 1) => cast.run(&src.bytes[..count * src_size], &mut dst.bytes[..count * dst_size]),
        (_, 1) if cast.is_identity() => {
            pack(src_size, src.bytes, src.stride, &mut dst.bytes[..count * dst_size]);
        }
        (1, _) if cast.is_identity() => {
            scatter(dst_size, &src.bytes[..count * src_size], dst.bytes, dst.stride);
        }
        _ => row_by_blocks(cast, src, dst, count, scratch),
    }
}

fn row_by_blocks(
    cast: Cast,
    src: Strided<&[u8]>,
    dst: Strided<&mut [u8]>,
    count: usize,
    scratch: &mut Scratch,
) {
    let (src_size, dst_size) = (cast.src_size(), cast.dst_size());
    for start in (0..count).step_by(BLOCK_ELEMENTS) {
        let count = BLOCK_ELEMENTS.min(count - start);
        let src_bytes = &src.bytes[start * src.stride * src_size..];
        let dst_bytes = &mut dst.bytes[start * dst.stride * dst_size..];
        let packed = if src.stride == 1 {
            &src_bytes[..count * src_size]
        } else {
            let packed = &mut scratch.packed[..count * src_size];
            pack(src_size, src_bytes, src.stride, packed);
            packed
        };
        if dst.stride == 1 {
            cast.run(packed, &mut dst_bytes[..count * dst_size]);
        } else {
            let converted = &mut scratch.converted[..count * dst_size];
            cast.run(packed, converted);
            scatter(dst_size, converted, dst_bytes, dst.stride);
        }
    }
}

/// Gathers elements of `size` bytes that are `stride` elements apart in `src` into contiguous `dst`.
pub(super) fn pack(size: usize, src: &[u8], stride: usize, dst: &mut [u8]) {
    match size {
        1 => pack_elements::<1>(src, stride, dst),
        2 => pack_elements::<2>(src, stride, dst),
        4 => pack_elements::<4>(src, stride, dst),
        8 => pack_elements::<8>(src, stride, dst),
        _ => pack_elements::<16>(src, stride, dst),
    }
}

/// Scatters the contiguous elements of `src`, of `size` bytes each, over `dst`, `stride` elements apart.
fn scatter(size: usize, src: &[u8], dst: &mut [u8], stride: usize) {
    match size {
        1 => scatter_elements::<1>(src, dst, stride),
        2 => scatter_elements::<2>(src, dst, stride),
        4 => scatter_elements::<4>(src, dst, stride),
        8 => scatter_elements::<8>(src, dst, stride),
        _ => scatter_elements::<16>(src, dst, stride),
    }
}

fn pack_elements<const N: usize>(src: &[u8], stride: usize, dst: &mut [u8]) {
    let (dst, _) = dst.as_chunks_mut::<N>();
    if stride == 0 {
        if let Some(element) = src.first_chunk::<N>() {
            dst.fill(*element);
        }
        return;
    }
    for (dst, src) in dst.iter_mut().zip(src.chunks(stride * N)) {
        if let Some(element) = src.first_chunk() {
            *dst = *element;
        }
    }
}

fn scatter_elements<const N: usize>(src: &[u8], dst: &mut [u8], stride: usize) {
    let (src, _) = src.as_chunks::<N>();
    for (src, dst) in src.iter().zip(dst.chunks_mut(stride * N)) {
        if let Some(element) = dst.first_chunk_mut() {
            *element = *src;
        }
    }
}
