//! Element types: their names in torch, safetensors and NumPy words, their sizes and kinds.

use std::fmt;

use crate::error::{Code, Error, Result};

/// What kind of number an element is; a cast that changes the kind downwards is lossy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// True or false.
    Bool,
    /// Signed and unsigned integers.
    Int,
    /// Floating point of any width.
    Float,
    /// Pairs of floats.
    Complex,
    /// Several elements to the byte, or bits without a meaning; handed on, never converted.
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

            /// The name, as torch spells it: `"bfloat16"`.
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

            /// The dtype called `name` in torch's, safetensors' or NumPy's words, with or without `torch.`.
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
    /// The dtype called `name`, or an error that lists what there is.
    pub fn parse(name: &str) -> Result<DType> {
        DType::from_name(name).ok_or_else(|| {
            let known: Vec<_> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
            Error::new(Code::Value, format!("{name:?} is no dtype"))
                .note(format!("known: {}", known.join(", ")))
        })
    }

    /// The code in a safetensors header, where the format has one.
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

    /// The dtype of a safetensors header's code; only the exact spelling counts.
    pub fn from_safetensors(code: &str) -> Option<DType> {
        DType::ALL.iter().copied().find(|dtype| dtype.safetensors() == Some(code))
    }

    /// The dtype of one half of a complex number.
    pub fn real_part(self) -> Option<DType> {
        match self {
            DType::C32 => Some(DType::F16),
            DType::C64 => Some(DType::F32),
            DType::C128 => Some(DType::F64),
            _ => None,
        }
    }

    /// What an element's address must be a multiple of. torch's kernels take complex numbers as wholes (c10/util/complex.h:
    /// `alignas(sizeof(T) * 2)`), although their two numbers could lie at multiples of their own size.
    pub fn align(self) -> u64 {
        self.itemsize()
    }

    /// Bytes that a byte-order swap reverses as one: the element, or each half of a complex number.
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
