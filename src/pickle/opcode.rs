//! The 68 opcodes of the pickle protocols 0 to 5, in one table: byte, name, kind of argument, protocol.
//!
//! Follows the opcode table of CPython's `pickletools`. A byte outside the table is not an opcode; what an opcode does is in
//! `machine`.

/// The encoding of an opcode's argument in the stream (`pickletools: ArgumentDescriptor`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArgKind {
    /// No argument.
    None,
    /// One unsigned byte.
    U8,
    /// Two bytes, unsigned little-endian.
    U16,
    /// Four bytes, unsigned little-endian.
    U32,
    /// Four bytes, signed little-endian.
    I32,
    /// Eight bytes, unsigned little-endian.
    U64,
    /// Eight bytes, a big-endian double.
    F64,
    /// A length of one byte, then so many bytes.
    Counted1,
    /// An unsigned length of four bytes, then so many bytes.
    Counted4,
    /// A signed length of four bytes, then so many bytes; a negative length is an error.
    Counted4Signed,
    /// An unsigned length of eight bytes, then so many bytes.
    Counted8,
    /// A text line up to the limit `line`, without its line feed.
    Line,
    /// A text line with an integer.
    Digits,
    /// A text line with a string of any length.
    Text,
    /// Two text lines up to the limit `line`.
    Pair,
}

macro_rules! opcodes {
    ($($name:ident = $byte:literal, $text:literal, $kind:ident, $protocol:literal;)*) => {
        /// An opcode; its discriminant is its byte.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Opcode { $(#[doc = $text] $name = $byte,)* }

        impl Opcode {
            /// Every opcode, in the order of the table.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];

            /// The opcode with this byte; `None` where there is none.
            #[inline(always)]
            pub const fn from_byte(byte: u8) -> Option<Opcode> {
                match byte { $($byte => Some(Opcode::$name),)* _ => None }
            }

            /// The opcode's byte.
            #[inline(always)]
            pub const fn byte(self) -> u8 {
                match self { $(Opcode::$name => $byte,)* }
            }

            /// The name that `pickletools` gives it.
            pub const fn name(self) -> &'static str {
                match self { $(Opcode::$name => $text,)* }
            }

            /// The encoding of its argument.
            #[inline(always)]
            pub const fn arg(self) -> ArgKind {
                match self { $(Opcode::$name => ArgKind::$kind,)* }
            }

            /// The protocol that introduced it.
            #[inline]
            pub const fn protocol(self) -> u8 {
                match self { $(Opcode::$name => $protocol,)* }
            }
        }
    };
}

opcodes! {
    Int = b'I', "INT", Digits, 0;
    BinInt = b'J', "BININT", I32, 1;
    BinInt1 = b'K', "BININT1", U8, 1;
    BinInt2 = b'M', "BININT2", U16, 1;
    Long = b'L', "LONG", Digits, 0;
    Long1 = 0x8a, "LONG1", Counted1, 2;
    Long4 = 0x8b, "LONG4", Counted4Signed, 2;
    String = b'S', "STRING", Text, 0;
    BinString = b'T', "BINSTRING", Counted4Signed, 1;
    ShortBinString = b'U', "SHORT_BINSTRING", Counted1, 1;
    BinBytes = b'B', "BINBYTES", Counted4, 3;
    ShortBinBytes = b'C', "SHORT_BINBYTES", Counted1, 3;
    BinBytes8 = 0x8e, "BINBYTES8", Counted8, 4;
    ByteArray8 = 0x96, "BYTEARRAY8", Counted8, 5;
    NextBuffer = 0x97, "NEXT_BUFFER", None, 5;
    ReadonlyBuffer = 0x98, "READONLY_BUFFER", None, 5;
    None = b'N', "NONE", None, 0;
    NewTrue = 0x88, "NEWTRUE", None, 2;
    NewFalse = 0x89, "NEWFALSE", None, 2;
    Unicode = b'V', "UNICODE", Text, 0;
    ShortBinUnicode = 0x8c, "SHORT_BINUNICODE", Counted1, 4;
    BinUnicode = b'X', "BINUNICODE", Counted4, 1;
    BinUnicode8 = 0x8d, "BINUNICODE8", Counted8, 4;
    Float = b'F', "FLOAT", Line, 0;
    BinFloat = b'G', "BINFLOAT", F64, 1;
    EmptyList = b']', "EMPTY_LIST", None, 1;
    Append = b'a', "APPEND", None, 0;
    Appends = b'e', "APPENDS", None, 1;
    List = b'l', "LIST", None, 0;
    EmptyTuple = b')', "EMPTY_TUPLE", None, 1;
    Tuple = b't', "TUPLE", None, 0;
    Tuple1 = 0x85, "TUPLE1", None, 2;
    Tuple2 = 0x86, "TUPLE2", None, 2;
    Tuple3 = 0x87, "TUPLE3", None, 2;
    EmptyDict = b'}', "EMPTY_DICT", None, 1;
    Dict = b'd', "DICT", None, 0;
    SetItem = b's', "SETITEM", None, 0;
    SetItems = b'u', "SETITEMS", None, 1;
    EmptySet = 0x8f, "EMPTY_SET", None, 4;
    AddItems = 0x90, "ADDITEMS", None, 4;
    FrozenSet = 0x91, "FROZENSET", None, 4;
    Pop = b'0', "POP", None, 0;
    Dup = b'2', "DUP", None, 0;
    Mark = b'(', "MARK", None, 0;
    PopMark = b'1', "POP_MARK", None, 1;
    Get = b'g', "GET", Line, 0;
    BinGet = b'h', "BINGET", U8, 1;
    LongBinGet = b'j', "LONG_BINGET", U32, 1;
    Put = b'p', "PUT", Line, 0;
    BinPut = b'q', "BINPUT", U8, 1;
    LongBinPut = b'r', "LONG_BINPUT", U32, 1;
    Memoize = 0x94, "MEMOIZE", None, 4;
    Ext1 = 0x82, "EXT1", U8, 2;
    Ext2 = 0x83, "EXT2", U16, 2;
    Ext4 = 0x84, "EXT4", I32, 2;
    Global = b'c', "GLOBAL", Pair, 0;
    StackGlobal = 0x93, "STACK_GLOBAL", None, 4;
    Reduce = b'R', "REDUCE", None, 0;
    Build = b'b', "BUILD", None, 0;
    Inst = b'i', "INST", Pair, 0;
    Obj = b'o', "OBJ", None, 1;
    NewObj = 0x81, "NEWOBJ", None, 2;
    NewObjEx = 0x92, "NEWOBJ_EX", None, 4;
    Proto = 0x80, "PROTO", U8, 2;
    Stop = b'.', "STOP", None, 0;
    Frame = 0x95, "FRAME", U64, 4;
    PersId = b'P', "PERSID", Line, 0;
    BinPersId = b'Q', "BINPERSID", None, 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_68_opcodes_and_each_byte_names_one() {
        assert_eq!(Opcode::ALL.len(), 68);
        let known = (0..=255).filter_map(Opcode::from_byte).count();
        assert_eq!(known, 68);
        for &opcode in Opcode::ALL {
            assert_eq!(Opcode::from_byte(opcode.byte()), Some(opcode));
            assert!(opcode.protocol() <= 5);
        }
    }
}
