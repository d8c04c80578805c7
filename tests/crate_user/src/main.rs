//! Loads, slices, casts, joins, streams, writes, compares and scans files, in safe Rust.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs;
use std::path::Path;

use rustload::compare::{self, CompareOptions};
use rustload::scan::{self, Verdict};
use rustload::statistics::{self, StatisticsOptions};
use rustload::write::{self, FolderOptions, Values, WriteOptions};
use rustload::{
    Checkpoint, Code, DType, Joined, Limits, Options, Output, Request, StreamOptions, TensorIndex, bf16,
};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("rustload-crate-user-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let done = use_files(&folder);
    fs::remove_dir_all(&folder)?;
    done
}

fn use_files(folder: &Path) -> Result<(), Box<dyn Error>> {
    let (one, two) = (folder.join("one.safetensors"), folder.join("two.safetensors"));
    fs::write(&one, safetensors("one", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))?;
    fs::write(&two, safetensors("two", [7.0, 8.0, 9.0, 10.0, 11.0, 12.0]))?;

    // Load.
    let checkpoint = Checkpoint::open(&one)?;
    assert_eq!(checkpoint.names().map(|name| &**name).collect::<Vec<_>>(), ["one"]);
    let tensor = checkpoint.tensor("one")?;
    assert_eq!((tensor.dtype(), tensor.shape()), (DType::F32, &[2, 3][..]));
    let view = tensor.materialize(&Request::new())?;
    assert!(view.is_view() && view.as_bytes().is_none());
    assert_eq!(view.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);

    // Slice.
    let column = tensor.index(&[TensorIndex::Ellipsis, 1.into()])?;
    assert_eq!(column.materialize(&Request::new())?.to_vec::<f32>()?, [2.0, 5.0]);
    let row = tensor.index(&[(-1).into(), (1..).into()])?.materialize(&Request::new().copy(true))?;
    assert_eq!(row.as_slice::<f32>(), Some(&[5.0, 6.0][..]));

    // Cast.
    let half = tensor.materialize(&Request::new().dtype(DType::BF16).transpose())?;
    let expected = [1.0, 4.0, 2.0, 5.0, 3.0, 6.0].map(bf16::from_f32);
    assert_eq!((half.shape(), half.as_slice::<bf16>()), (&[3, 2][..], Some(&expected[..])));
    let lossy = tensor.materialize(&Request::new().dtype(DType::I8)).map(|_| ());
    assert_eq!(lossy.map_err(|error| error.code()), Err(Code::LossyCast));

    // Several files, joined and streamed.
    let options = Options::new().limits(Limits::new().tensors(100)).verify(true);
    let both = Checkpoint::open_all([&one, &two], options)?;
    let joined = Joined::concat(vec![both.tensor("one")?, both.tensor("two")?], 0)?;
    let joined = joined.materialize(&Request::new().dtype(DType::F64))?;
    assert_eq!(joined.as_slice::<f64>().map(|all| all.iter().sum::<f64>()), Some(78.0));
    let mut sum = 0.0;
    for item in both.stream(&Request::new().copy(true), StreamOptions::new().window(1 << 20)) {
        let Output::Array(array) = item?.output else { return Err("an array for each name".into()) };
        sum += array.as_slice::<f32>().ok_or("owned memory")?.iter().sum::<f32>();
    }
    assert_eq!(sum, 78.0);

    // Write a file and a folder of shards; compare them with their sources, and look at the numbers.
    let half = Request::new().dtype(DType::BF16);
    let values = |request: &Request| -> Result<Vec<(String, Values)>, rustload::Error> {
        both.names()
            .map(|name| Ok((name.to_string(), Values::Tensor(both.tensor(name)?, request.clone()))))
            .collect()
    };
    let file = folder.join("both.safetensors");
    let options = WriteOptions::new().metadata(vec![("format".into(), "pt".into())]).verify(true);
    let nbytes = write::write_file(&file, values(&half)?, &options)?;
    assert_eq!(fs::metadata(&file)?.len(), nbytes);
    let written = Checkpoint::open(&file)?;
    let pairs = both
        .names()
        .map(|name| {
            let own = Values::Tensor(both.tensor(name)?, half.clone());
            Ok((own, Values::Tensor(written.tensor(name)?, Request::new())))
        })
        .collect::<Result<Vec<_>, rustload::Error>>()?;
    let compared = compare::compare(&pairs, &CompareOptions::new())?;
    assert!(compared.iter().all(|found| found.total == 6 && found.different == 0));
    let shards = folder.join("shards");
    let small = FolderOptions::new().max_shard_size(24);
    let files = write::write_folder(&shards, values(&Request::new())?, &small, &WriteOptions::new())?;
    assert_eq!(files.len(), 3);
    assert_eq!(Checkpoint::open(&shards)?.names().count(), 2);
    let numbers: Vec<Values> = values(&Request::new())?.into_iter().map(|(_, values)| values).collect();
    let found = statistics::statistics(&numbers, &StatisticsOptions::new().bins(3))?;
    assert_eq!(found[1].as_ref().and_then(|found| found.mean), Some(9.5));

    // Scan.
    let inert = scan::scan([&one, &two], &scan::Options::new())?;
    assert_eq!((inert.files.len(), inert.verdict()), (2, Verdict::Inert));
    let pickle = folder.join("model.pkl");
    fs::write(&pickle, b"cposix\nsystem\n(S'echo hello'\ntR.")?;
    let report = scan::scan([&pickle], &scan::Options::new())?;
    assert_eq!(report.verdict(), Verdict::WouldExecute);
    assert!(Checkpoint::open(&pickle)?.opaque().iter().any(|class| class.class == "posix.system"));
    Ok(())
}

/// A file of one 2x3 tensor.
fn safetensors(name: &str, numbers: [f32; 6]) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}}}"#);
    // Padded with spaces, so that the data is aligned and can be viewed.
    let header = format!("{header:<64}");
    let data = numbers.map(f32::to_le_bytes).concat();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}
