//! Element types: their names in torch, safetensors and NumPy, their sizes and kinds.

use std::fmt;

use crate::error::{Code, Error, Result};

/// The kind of number of an element. The kinds are ordered; a cast to a lower kind is lossy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// True or false.
    Bool,
    /// Signed and unsigned integers.
    Int,
    /// Floating point of any width.
    Float,
    /// Pairs of floats.
    Complex,
    /// Several elements per byte, or opaque bits; copied, never converted.
    Packed,
}

macro_rules! dtypes {
    ($($variant:ident $name:literal $size:literal $kind:ident [$($alias:literal)*];)*) => {
        /// The type of a tensor's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum DType { $(#[doc = concat!("`", $name, "`, ", $size, " byte(s).")] $variant,)* }

        impl DType {
            /// Every dtype.
            pub const ALL: &'static [DType] = &[$(DType::$variant,)*];

            /// The name in torch: `"bfloat16"`.
            pub fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// Bytes of one element.
            pub fn itemsize(self) -> u64 {
                match self { $(DType::$variant => $size,)* }
            }

            /// The kind of number.
            pub fn kind(self) -> Kind {
                match self { $(DType::$variant => Kind::$kind,)* }
            }

            /// The dtype with this name in torch, safetensors or NumPy, with or without the prefix `torch.`.
            pub fn from_name(name: &str) -> Option<DType> {
                match name.strip_prefix("torch.").unwrap_or(name) {
                    $($name $(| $alias)* => Some(DType::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

dtypes! {
    Bool "bool" 1 Bool ["BOOL"];
    U8 "uint8" 1 Int ["U8" "u8"];
    I8 "int8" 1 Int ["I8" "i8"];
    U16 "uint16" 2 Int ["U16" "u16"];
    I16 "int16" 2 Int ["I16" "i16" "short"];
    U32 "uint32" 4 Int ["U32" "u32"];
    I32 "int32" 4 Int ["I32" "i32" "int"];
    U64 "uint64" 8 Int ["U64" "u64"];
    I64 "int64" 8 Int ["I64" "i64" "long"];
    F8E4M3Fn "float8_e4m3fn" 1 Float ["F8_E4M3" "f8_e4m3" "fp8_e4m3"];
    F8E5M2 "float8_e5m2" 1 Float ["F8_E5M2" "f8_e5m2" "fp8_e5m2"];
    F8E4M3Fnuz "float8_e4m3fnuz" 1 Float ["F8_E4M3FNUZ"];
    F8E5M2Fnuz "float8_e5m2fnuz" 1 Float ["F8_E5M2FNUZ"];
    F8E8M0Fnu "float8_e8m0fnu" 1 Float ["F8_E8M0"];
    F16 "float16" 2 Float ["F16" "f16" "fp16" "half"];
    BF16 "bfloat16" 2 Float ["BF16" "bf16"];
    F32 "float32" 4 Float ["F32" "f32" "fp32" "float"];
    F64 "float64" 8 Float ["F64" "f64" "fp64" "double"];
    C32 "complex32" 4 Complex ["C32" "chalf"];
    C64 "complex64" 8 Complex ["C64" "cfloat"];
    C128 "complex128" 16 Complex ["C128" "cdouble"];
    F4E2M1FnX2 "float4_e2m1fn_x2" 1 Packed ["F4"];
    Bits8 "bits8" 1 Packed [];
    Bits16 "bits16" 2 Packed [];
    Bits1x8 "bits1x8" 1 Packed [];
    Bits2x4 "bits2x4" 1 Packed [];
    Bits4x2 "bits4x2" 1 Packed [];
}

impl DType {
    /// The dtype named `name`; fails with a note that lists the known names.
    pub fn parse(name: &str) -> Result<DType> {
        DType::from_name(name).ok_or_else(|| {
            let known: Vec<_> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
            Error::new(Code::Value, format!("{name:?} is no dtype"))
                .note(format!("known: {}", known.join(", ")))
        })
    }

    /// The dtype's code in a safetensors header; `None` where the format has none.
    pub fn safetensors(self) -> Option<&'static str> {
        Some(match self {
            DType::Bool => "BOOL",
            DType::U8 => "U8",
            DType::I8 => "I8",
            DType::U16 => "U16",
            DType::I16 => "I16",
            DType::U32 => "U32",
            DType::I32 => "I32",
            DType::U64 => "U64",
            DType::I64 => "I64",
            DType::F8E4M3Fn => "F8_E4M3",
            DType::F8E5M2 => "F8_E5M2",
            DType::F8E4M3Fnuz => "F8_E4M3FNUZ",
            DType::F8E5M2Fnuz => "F8_E5M2FNUZ",
            DType::F8E8M0Fnu => "F8_E8M0",
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            DType::F32 => "F32",
            DType::F64 => "F64",
            DType::C64 => "C64",
            DType::F4E2M1FnX2 => "F4",
            DType::C32
            | DType::C128
            | DType::Bits8
            | DType::Bits16
            | DType::Bits1x8
            | DType::Bits2x4
            | DType::Bits4x2 => return None,
        })
    }

    /// The dtype with this code in a safetensors header; the code is case-sensitive.
    pub fn from_safetensors(code: &str) -> Option<DType> {
        DType::ALL.iter().copied().find(|dtype| dtype.safetensors() == Some(code))
    }

    /// The dtype with this type code in NumPy, without a byte order: `"f4"`.
    pub fn from_numpy_code(code: &str) -> Option<DType> {
        Some(match code {
            "b1" => DType::Bool,
            "u1" => DType::U8,
            "i1" => DType::I8,
            "u2" => DType::U16,
            "i2" => DType::I16,
            "u4" => DType::U32,
            "i4" => DType::I32,
            "u8" => DType::U64,
            "i8" => DType::I64,
            "f2" => DType::F16,
            "f4" => DType::F32,
            "f8" => DType::F64,
            "c8" => DType::C64,
            "c16" => DType::C128,
            _ => return None,
        })
    }

    /// The dtype of the real and of the imaginary part of a complex dtype; `None` for other dtypes.
    pub fn real_part(self) -> Option<DType> {
        match self {
            DType::C32 => Some(DType::F16),
            DType::C64 => Some(DType::F32),
            DType::C128 => Some(DType::F64),
            _ => None,
        }
    }

    /// The alignment of an element in bytes. torch's kernels load a complex number as a whole (c10/util/complex.h:
    /// `alignas(sizeof(T) * 2)`), although its two parts need only their own alignment.
    pub fn align(self) -> u64 {
        self.itemsize()
    }

    /// The number of bytes that a byte swap reverses at a time: an element, or one part of a complex number.
    pub fn swap_unit(self) -> u64 {
        self.real_part().unwrap_or(self).itemsize()
    }

    /// The unsigned integer of that many bytes; bytes for any other number.
    pub(crate) fn unsigned(nbytes: u64) -> DType {
        match nbytes {
            2 => DType::U16,
            4 => DType::U32,
            8 => DType::U64,
            _ => DType::U8,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for &dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
            assert_eq!(DType::from_name(&format!("torch.{dtype}")), Some(dtype));
            if let Some(code) = dtype.safetensors() {
                assert_eq!(DType::from_safetensors(code), Some(dtype));
                assert_eq!(DType::from_name(code), Some(dtype));
            }
        }
        assert_eq!(DType::from_safetensors("f32"), None);
    }
}
