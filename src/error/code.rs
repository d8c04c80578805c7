//! The catalogue of errors: the kinds, and the codes with what they mean and what to try next.

use std::borrow::Cow;

use super::remedy::Remedy::{self, Call, List, Pass, Raise, Say};
use super::remedy::Value::{Any, Flag, Word};

/// The category of an error: who must act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The environment: a missing file, a permission, a failing disk.
    Io,
    /// The author of the file: it is malformed.
    Format,
    /// rustload, in a later version.
    Unsupported,
    /// The user: decide whether to trust the file.
    Disallowed,
    /// The user: raise the limit or reject the file.
    Limit,
    /// The caller: no tensor has that name.
    NotFound,
    /// The caller: a wrong value.
    Value,
    /// The caller: an index out of bounds.
    Index,
    /// The caller: a wrong type.
    Type,
    /// The caller: a view was requested and none is possible.
    Buffer,
    /// The driver or the GPU.
    Device,
    /// The machine ran out of memory.
    Memory,
    /// The caller: the operation was cancelled.
    Cancelled,
    /// A bug in rustload.
    Internal,
}

/// The last column of the catalogue: words, or a list of remedies. Without it, the file is damaged.
macro_rules! remedies {
    () => { remedies!("The file is damaged or was made by hand: fetch it again, or ask its author.") };
    ($words:literal) => { &[say($words)] };
    ([$($remedy:expr),*]) => { &[$($remedy),*] };
}

const fn say(words: &'static str) -> Remedy {
    Say(Cow::Borrowed(words))
}

macro_rules! codes {
    ($($name:ident: $kind:ident, $what:literal $(, $next:tt)?;)*) => {
        /// The stable code of an error, with the same name in Rust, Python, the CLI and the documentation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code { $(#[doc = $what] $name,)* }

        impl Code {
            /// Every code, in the order of the catalogue.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// The code's name, as in Python's `.code`.
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => stringify!($name),)* }
            }

            /// Who must act.
            pub fn kind(self) -> Kind {
                match self { $(Code::$name => Kind::$kind,)* }
            }

            /// The meaning of the code, in one sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(Code::$name => $what,)* }
            }

            /// What to try next: alternatives, in words with the likely cause where it is not obvious; none for wrong arguments.
            pub fn remedies(self) -> &'static [Remedy] {
                match self { $(Code::$name => const { remedies!($($next)?) },)* }
            }
        }
    };
}

impl Code {
    /// Whether bytes could not be read, or are not those that were to be read: no fault of a format, which a reader could get over.
    pub(crate) fn is_read_failure(self) -> bool {
        matches!(self, Code::Io | Code::FileChanged | Code::ManifestMismatch | Code::ManifestMissing)
    }
}

codes! {
    Io: Io, "The operating system refused to read or map the file.",
        "Check the path, its permissions and the disk.";
    NotRegularFile: Format, "The path is a device, a pipe or another thing that is not a regular file.",
        "Copy the data into a regular file first.";
    FileChanged: Format, "The file was cut or changed after it was opened.",
        "Open the checkpoint again once the writer is done.";
    RemoteScheme: Value, "The scheme of the URL is not allowed.",
        [Pass("remote", Any, "to rustload.open to allow it"), say("pass an object that is read by ranges")];
    RemoteUnavailable: Unsupported, "The package that reads such URLs is not installed.",
        "Install it, or download the file and open its path.";
    RemoteFolder: Unsupported, "A URL in a list of shards is a folder or an index.",
        "Open the folder or the index by itself.";
    RemoteSize: Io, "The store does not say how long the object is.",
        "Download the file and open its path.";
    RemoteRange: Io, "The store returned something else than the range that it was asked for.",
        "The server may not support ranges: download the file and open its path.";
    Truncated: Format, "The data is shorter than it states.",
        "The download or copy is probably incomplete: fetch the file again.";
    UnknownFormat: Format, "The content is not in a checkpoint format that rustload knows.",
        "Check that the file is a checkpoint and was downloaded whole.";
    UnsupportedContainer: Unsupported, "The content is an archive in a format that does not contain a checkpoint directly.",
        "Unpack it, then open what it contains.";
    TarUnsupported: Unsupported, "The file is a tar archive that is neither a checkpoint of torch 0.1 nor one of NeMo.",
        "Unpack it, and open what it contains.";

    ManifestMismatch: Format, "The file is not the one that the manifest lists.",
        "The file is damaged or was changed: fetch it again, and do not use it as it is.";
    ManifestMissing: Format, "The manifest does not list a file that would be read.",
        "The file is not part of what was verified: do not use it before you know why it is there.";
    ManifestInvalid: Format, "The manifest is not one of the known forms, or contradicts itself.",
        "Fetch the manifest again, from where you trust it.";

    ShardMissing: Format, "Files that the index or the shard numbers imply are missing.",
        "A download or copy is probably incomplete: put the missing files into the same directory.";
    ShardDuplicate: Format, "A tensor name is in two shards and no index says which to use.",
        [
            say("open the shards one by one"), say("give the index file"),
            Call("concat", "to join the parts that tensor-parallel training saves")
        ];
    IndexFormat: Format, "The index file is not JSON of the expected form.",
        "Download the index file again.";
    IndexKey: Format, "The index names a tensor that its shard does not contain.",
        "The index and the shards are from different versions: download both again.";

    DcpUnfinished: Format, "A distributed checkpoint has no .metadata file, which torch writes last, or its folder still has the name of an unfinished save.",
        "The save did not finish, or the copy is incomplete: fetch the folder again.";
    DcpRankLocal: Unsupported, "Every rank of a distributed checkpoint has metadata of its own.",
        "Open the metadata file of one rank, or save sharded tensors with use_collectives=True.";
    DcpMetadata: Format, "The metadata of a distributed checkpoint is not what its writer writes.";
    DcpGrid: Format, "The chunks of a tensor overlap, leave out elements or reach outside it.";
    DcpRange: Format, "Items of a distributed checkpoint share bytes, or lie outside their file.",
        "The metadata and the files are from different saves, or a copy is incomplete: fetch the folder again.";
    DcpPath: Format, "The metadata of a distributed checkpoint names a file outside the checkpoint's folder.",
        "No writer does so: do not use the files before you know why.";
    DcpChunk: Format, "A chunk is not the tensor that the metadata states.",
        "The metadata and the files are from different saves, or damaged: fetch the folder again.";
    DcpTransform: Unsupported, "The items of a distributed checkpoint are compressed or encrypted by an extension.",
        "Save it again without extensions.";
    PartConflict: Format, "Files that have parts of one tensor do not agree on its dtype or shape.",
        "Give the files of all processes of one save, and no others.";

    ZeroState: Format, "A file of a DeepSpeed checkpoint has not what DeepSpeed writes.";
    ZeroPartition: Format, "The partitions of the ranks of a DeepSpeed checkpoint are not the parameters that its files state.",
        "A file is damaged, or of another save: fetch the folder again.";
    ZeroConflict: Format, "The files of a DeepSpeed checkpoint do not agree with each other.",
        "They are of several saves, or were renamed: fetch the folder again.";
    ZeroUnsupported: Unsupported, "The parameters of a DeepSpeed checkpoint are divided in a way that rustload does not join.",
        "Convert the folder with DeepSpeed's ds_to_universal.py, and open the result.";

    ExportConfig: Format, "The configuration of an exported program is not what torch writes, or contradicts the archive.";
    ExportVersion: Unsupported, "The archive of an exported program is in a version that rustload does not know.",
        "It is from a newer torch: look for a newer rustload.";
    ExportSymbolic: Unsupported, "The shape of a stored tensor is an expression, and has no numbers.",
        "Save the program with weights of fixed shapes.";

    ZipPrefix: Format, "There are bytes before the archive's first member (a prefix).",
        "Other readers may see another archive in this file.";
    ZipStructure: Format, "The archive's central directory contradicts itself.";
    ZipAmbiguous: Format, "The archive's end-of-central-directory record is missing or not the only one.",
        "The download is probably incomplete: fetch the file again.";
    ZipTrailing: Format, "There are bytes after the archive's end.",
        [Pass("trailing", Word("ignore"), "if you know why they are there")];
    ZipMismatch: Format, "A member's local file header contradicts the central directory.";
    ZipDuplicate: Format, "Two members have one name.", "Other readers may take the other one.";
    ZipCase: Format, "A member's name differs from a required one only in upper and lower case.",
        "Other readers may take it for the required one.";
    ZipName: Format, "A member's name is not one that torch writes.";
    ZipCrc: Format, "A member's checksum does not match its bytes.", "The file is damaged: fetch it again.";
    ZipUnsupported: Unsupported, "A member is encrypted or compressed in a way other than deflate.",
        "Pack the archive again without it.";
    ZipVersion: Unsupported, "The archive's version record is outside what torch has written so far.",
        "It is from a newer torch, or damaged: look for a newer rustload, or fetch it again.";
    RecordOverlap: Format, "Two members overlap in the file.";
    RecordCompressed: Buffer, "The bytes are compressed in the file, so no view of them exists.",
        [Pass("copy", Flag(true), "to get a copy")];
    RecordMissing: Format, "A member that the checkpoint needs is missing.",
        "The file is incomplete or was packed by hand.";
    ByteOrder: Format, "The byteorder record is neither little nor big, or big-endian numbers lie on a storage of another width.";

    TarStructure: Format, "Readers of tar archives may see different members in the file, or a member is a link or a device.";
    TarContent: Format, "A checkpoint of torch 0.1, or what a NeMo archive holds, contradicts itself.";

    PickleOpcode: Format, "A byte of the pickle is not an opcode.", "The pickle is damaged, or a later protocol's: fetch the file again, or ask its author.";
    PickleProto: Format, "The pickle's protocol is above 5, or stated anywhere but at its start.",
        "The pickle is damaged or a later Python's: write it again with protocol 5 or below.";
    PickleStack: Format, "An opcode needs more values than are on the stack, or STOP leaves some.";
    PickleMemo: Format, "A memo index is unset, negative or not in canonical decimal.";
    PickleType: Format, "An opcode's operand has the wrong type.";
    PickleFrame: Format, "A frame is too long, nested or straddled by an opcode.",
        "Unpicklers disagree about such a file, and no writer makes one: do not use it before you know why.";
    PickleText: Format, "A string of the pickle is not valid in its encoding.";
    AmbiguousNumber: Format, "A number has a form that unpicklers disagree about.",
        "No writer uses this form: do not use the file before you know why.";
    TrailingData: Format, "There are bytes after the end of a pickle, an array or a tar archive.",
        [Pass("trailing", Word("ignore"), "if you know why they are there")];
    ExtRegistry: Format, "The pickle refers to a class by its code in the process's extension registry.",
        "Only the writer's process knows the class: save it again without copyreg.add_extension.";
    OutOfBand: Format, "The pickle needs out-of-band buffers, from outside the file.",
        "It was pickled with a buffer_callback: save it again without one.";
    PersistentId: Format, "A persistent id is not one that torch writes.",
        "Another program wrote the pickle: open the file with that program.";
    DisallowedGlobal: Disallowed, "The pickle names a class or function that rustload does not know.",
        [Pass("unknown", Word("keep"), "to get such values as inert data")];
    DisallowedCall: Disallowed, "The pickle calls something in a way that rustload does not know.",
        [Pass("unknown", Word("keep"), "to get such values as inert data")];

    LegacyVersion: Unsupported, "The legacy stream states a protocol other than 1001.",
        "It is from a torch that was never released, or damaged: fetch it again.";
    LegacyKeys: Format, "The legacy stream's list of storage keys does not match its tensors.";

    StorageKey: Format, "A storage key is not a plain decimal number or name.",
        "The file was made by hand: ask its author.";
    StorageBounds: Format, "A storage's stated size differs from the bytes in the file.";
    NdarrayBounds: Format, "The number of bytes of a NumPy array or scalar does not match its dtype and shape.";
    NpyHeader: Format, "The header of a NumPy array is not one that writers of the format write.";
    NpyDtype: Unsupported, "The elements of a NumPy array are not numbers: strings, times, records or long doubles.",
        "Read it with numpy.load(..., allow_pickle=False).";
    NpyObjects: Unsupported, "The elements of a NumPy array are Python objects, which NumPy stores as a pickle.",
        [Call("scan", "to see what unpickling the objects would run")];
    StorageConflict: Format, "One storage is described in two contradicting ways.",
        "The file was made by hand: ask its author.";
    TensorBounds: Format, "A tensor reaches outside its storage.";
    TensorMetadata: Unsupported, "A tensor has a property that rustload does not know.",
        "It is from a newer torch: look for a newer rustload.";
    StateUnsupported: Unsupported, "The pickle changes a tensor, an array or a dtype after it made it, as no writer does.",
        "The file was made by hand: ask its author.";
    SparseInvariant: Format, "A sparse tensor's indices do not match its shape, or each other.",
        "The file is damaged or was made by hand; the component tensors can be read one by one.";
    MetaTensor: Unsupported, "The tensor was saved on the meta device, so the file has none of its elements.",
        [Pass("framework", Word("torch"), "to get a meta tensor"), say("use its dtype and shape alone")];
    TensorShape: Format, "A tensor's shape is impossible.";

    StHeader: Format, "The safetensors header is not what the format allows.",
        "The file is damaged or not safetensors.";
    StDuplicateKey: Format, "The safetensors header has a duplicate key.",
        [Pass("compat", Flag(true), "to take the last, as the reference reader does")];
    StOffsets: Format, "The safetensors data offsets do not cover the data exactly once.",
        "The file is damaged or its download is incomplete.";
    StDtype: Unsupported, "A safetensors dtype is unknown or cannot be addressed by bytes.",
        "It is from a newer writer, or damaged: look for a newer rustload, or fetch it again.";
    Nesting: Format, "The metadata's record of containers and values is not one that is written, or does not fit the tensors.",
        "The file was edited or made by hand; its tensors can be read by their names.";

    NotSafetensors: Unsupported, "A tensor has no form in a safetensors file.",
        [
            Pass("dtype", Any, "to cast it"), Pass("dequantize", Flag(true), "to decode it"), say("leave the tensor out")
        ];
    DuplicateName: Value, "Two tensors of a new file have one name.", "Rename one of them.";
    HeaderTooLarge: Value, "The header of a new safetensors file would be longer than the format allows.",
        [Pass("max_shard_size", Any, "to write a folder of several files"), say("use shorter names")];
    TiedTensors: Value, "Several names of a new file have one tensor.", [
            Pass("ties", Word("copy"), "to write each in full"), Pass("ties", Word("drop"), "to write one of them alone")
        ];
    TargetExists: Io, "A file of this name exists.", [Pass("overwrite", Flag(true), "to replace it"), say("write to another name")];
    TargetBusy: Io, "Another writer, of this process or of another one, has this file or folder.",
        "Wait until it is done, close or discard a `Writer` that is left open, or choose another name.";
    VerifyFailed: Io, "A new file, read back, differs from its source.",
        "The disk, the memory or what lies between is faulty: check them, and write to another disk.";
    WriterIncomplete: Value, "A new file was to be completed before all of its tensors were written.",
        "Write the tensors that the error names.";

    DtypeUnsupported: Unsupported, "A conversion between these dtypes does not exist.",
        [Pass("dtype", Any, "to convert to another dtype"), say("leave it out and convert the result yourself")];
    QuantUnknown: Unsupported, "A tensor is codes of a quantization, not numbers: its scheme is not known, or the checkpoint was opened without dequantize.",
        [
            Pass("dequantize", Flag(true), "when opening the checkpoint, which reads known schemes"),
            Pass("dequantize", Flag(false), "to read the codes as stored, for the library that wrote them"),
            Pass("dtype", Any, "with a pattern and without dequantize, for fp8 numbers without a scale")
        ];
    DTensorPlacement: Unsupported, "A sharded parameter does not say which elements this rank holds.",
        "Load before the model is sharded, or redistribute it to Shard and Replicate.";
    OpaqueValue: Unsupported, "A value is not plain data, and would have to be unpickled to be used.",
        "Use a planner that takes inert values, or leave the value out.";
    LossyCast: Value, "The cast would change the kind of number.", [Pass("allow_lossy", Flag(true), "to do it anyway")];
    Limit: Limit, "A limit was exceeded.", "Raise the limit if you trust the file.";
    InflateRatio: Limit, "Compressed metadata inflates to far more than its size in the file.",
        "No writer makes such a file: it may be made to use up memory. Raise the limit if you trust it.";
    NotFound: NotFound, "No tensor has that name.", [List];
    Closed: Value, "The checkpoint is closed.", "Existing handles still work; open it again for new ones.";
    ModelMismatch: Value, "The checkpoint and the model have different names or shapes.",
        [
            say("select or rename the tensors: the error lists them with similar names"),
            Pass("strict", Flag(false), "to load what fits")
        ];
    Forked: Value, "The stream was started before the process forked, and its threads exist only in the parent.",
        "Start the stream in the process that uses it.";
    Value: Value, "An argument has a wrong value.", [];
    Index: Index, "An index is out of bounds, or there are too many.", [];
    Type: Type, "An argument has a wrong type.", [];
    Buffer: Buffer, "No view without a copy is possible.", [Pass("copy", Flag(true), "to get a copy")];
    Device: Device, "The device is missing or reported an error.", [Pass("device", Word("cpu"), "to use the CPU"), say("check that the driver finds the GPU")];
    Memory: Memory, "The memory could not be allocated.", "Ask for a slice of the tensor or for views, or free other memory.";
    NotEnoughMemory: Memory, "The results need more memory than a limit of the process or the machine leaves; nothing was allocated.",
        [
            say("read the tensors one at a time with stream, or fewer of them"), Pass("dtype", Any, "for smaller elements"),
            Raise("available_memory", "if more may be taken")
        ];
    Cancelled: Cancelled, "The operation was cancelled.", "Start it again; no file was changed.";
    InternalError: Internal, "rustload has a bug.", "Please report it with the file, if you can share it.";
}
