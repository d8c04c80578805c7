//! Element types: their names in torch, safetensors and NumPy, their sizes and kinds.

use std::fmt;

use crate::error::{Code, Result, error};

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

macro_rules! optional {
    () => {
        None
    };
    ($value:literal) => {
        Some($value)
    };
}

macro_rules! dtypes {
    ($(
        $variant:ident $name:literal $size:literal $kind:ident [$($code:literal $rank:literal)?] [$($numpy:literal)?]
        $dlpack:tt [$($export:literal)?] [$($storage:literal)*] [$($alias:literal)*];
    )*) => {
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
                    $($name $(| $code)? $(| $alias)* => Some(DType::$variant),)*
                    _ => None,
                }
            }

            /// The dtype's code in a safetensors header; `None` where the format has none.
            pub fn safetensors(self) -> Option<&'static str> {
                match self { $(DType::$variant => optional!($($code)?),)* }
            }

            /// The code's number in the enumeration of the safetensors package, which sorts tensors by it, the last first.
            pub(crate) fn safetensors_rank(self) -> Option<u8> {
                match self { $(DType::$variant => optional!($($rank)?),)* }
            }

            /// The dtype with this code in a safetensors header; the code is case-sensitive.
            pub fn from_safetensors(code: &str) -> Option<DType> {
                match code { $($($code => Some(DType::$variant),)?)* _ => None }
            }

            /// The type code in NumPy, without a byte order: `"f4"`; `None` where NumPy has no such dtype.
            pub(crate) fn numpy_code(self) -> Option<&'static str> {
                match self { $(DType::$variant => optional!($($numpy)?),)* }
            }

            /// The dtype with this type code in NumPy, without a byte order.
            pub fn from_numpy_code(code: &str) -> Option<DType> {
                match code { $($($numpy => Some(DType::$variant),)?)* _ => None }
            }

            /// The type code and the number of lanes in DLPack.
            pub(crate) fn dlpack(self) -> (u8, u8) {
                match self { $(DType::$variant => $dlpack,)* }
            }

            /// The dtype with this number in the schema of torch.export (torch/_export/serde/schema.py: `ScalarType`).
            pub(crate) fn from_export_number(number: u64) -> Option<DType> {
                match number { $($($export => Some(DType::$variant),)?)* _ => None }
            }

            /// The dtype of the elements of a typed storage class of torch: `"FloatStorage"`. Of a quantized class, these are the
            /// integers without their scales; packed ones as bytes.
            pub(crate) fn from_storage_class(class: &str) -> Option<DType> {
                match class.strip_suffix("Storage")? {
                    $($($storage => Some(DType::$variant),)*)*
                    _ => None,
                }
            }
        }
    };
}

// One row for each dtype: its torch name, bytes, kind, safetensors code and rank, NumPy code, DLPack code and lanes (3 is
// kDLOpaqueHandle, for uninterpreted bits), torch.export number, storage classes (also those that only TorchScript writes), other names.
dtypes! {
    Bool       "bool"             1  Bool    ["BOOL" 0]         ["b1"]  (6, 1)  [12] ["Bool"]  [];
    U8         "uint8"            1  Int     ["U8" 4]           ["u1"]  (1, 1)  [1]  ["Byte" "QUInt8" "QUInt4x2" "QUInt2x4"] ["u8"];
    I8         "int8"             1  Int     ["I8" 5]           ["i1"]  (0, 1)  [2]  ["Char" "QInt8"] ["i8"];
    U16        "uint16"           2  Int     ["U16" 12]         ["u2"]  (1, 1)  [28] ["UInt16"] ["u16"];
    I16        "int16"            2  Int     ["I16" 11]         ["i2"]  (0, 1)  [3]  ["Short"] ["i16" "short"];
    U32        "uint32"           4  Int     ["U32" 16]         ["u4"]  (1, 1)  [34] ["UInt32"] ["u32"];
    I32        "int32"            4  Int     ["I32" 15]         ["i4"]  (0, 1)  [4]  ["Int" "QInt32"] ["i32" "int"];
    U64        "uint64"           8  Int     ["U64" 21]         ["u8"]  (1, 1)  [35] ["UInt64"] ["u64"];
    I64        "int64"            8  Int     ["I64" 20]         ["i8"]  (0, 1)  [5]  ["Long"]  ["i64" "long"];
    F8E4M3Fn   "float8_e4m3fn"    1  Float   ["F8_E4M3" 7]      []      (10, 1) [29] ["Float8_e4m3fn"] ["f8_e4m3" "fp8_e4m3"];
    F8E5M2     "float8_e5m2"      1  Float   ["F8_E5M2" 6]      []      (12, 1) [30] ["Float8_e5m2"] ["f8_e5m2" "fp8_e5m2"];
    F8E4M3Fnuz "float8_e4m3fnuz"  1  Float   ["F8_E4M3FNUZ" 9]  []      (11, 1) [31] ["Float8_e4m3fnuz"] [];
    F8E5M2Fnuz "float8_e5m2fnuz"  1  Float   ["F8_E5M2FNUZ" 10] []      (13, 1) [32] ["Float8_e5m2fnuz"] [];
    F8E8M0Fnu  "float8_e8m0fnu"   1  Float   ["F8_E8M0" 8]      []      (14, 1) [33] ["Float8_e8m0fnu"] [];
    F16        "float16"          2  Float   ["F16" 13]         ["f2"]  (2, 1)  [6]  ["Half"]  ["f16" "fp16" "half"];
    BF16       "bfloat16"         2  Float   ["BF16" 14]        []      (4, 1)  [13] ["BFloat16"] ["bf16"];
    F32        "float32"          4  Float   ["F32" 17]         ["f4"]  (2, 1)  [7]  ["Float"] ["f32" "fp32" "float"];
    F64        "float64"          8  Float   ["F64" 19]         ["f8"]  (2, 1)  [8]  ["Double"] ["f64" "fp64" "double"];
    C32        "complex32"        4  Complex []                 []      (5, 1)  [9]  ["ComplexHalf"] ["C32" "chalf"];
    C64        "complex64"        8  Complex ["C64" 18]         ["c8"]  (5, 1)  [10] ["ComplexFloat"] ["cfloat"];
    C128       "complex128"       16 Complex []                 ["c16"] (5, 1)  [11] ["ComplexDouble"] ["C128" "cdouble"];
    F4E2M1FnX2 "float4_e2m1fn_x2" 1  Packed  ["F4" 1]           []      (17, 2) []   ["Float4_e2m1fn_x2"] [];
    Bits8      "bits8"            1  Packed  []                 []      (3, 1)  []   ["Bits8"] [];
    Bits16     "bits16"           2  Packed  []                 []      (3, 1)  []   ["Bits16"] [];
    Bits1x8    "bits1x8"          1  Packed  []                 []      (3, 1)  []   ["Bits1x8"] [];
    Bits2x4    "bits2x4"          1  Packed  []                 []      (3, 1)  []   ["Bits2x4"] [];
    Bits4x2    "bits4x2"          1  Packed  []                 []      (3, 1)  []   ["Bits4x2"] [];
}

impl DType {
    /// The dtype named `name`; fails with a note that lists the known names.
    pub fn parse(name: &str) -> Result<DType> {
        DType::from_name(name).ok_or_else(|| {
            let known: Vec<_> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
            error!(Code::Value, "{name:?} is not a dtype").note(format!("known: {}", known.join(", ")))
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
