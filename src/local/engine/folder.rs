//! Hugging Face folders: `config.json` and one or many safetensors files.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Component, Path};

use safetensors::tensor::{Dtype as FileDtype, SafeTensors};
use serde::Deserialize;

use super::assemble::TensorSource;
use super::config::Config;
use super::mapping::{Mapping, Section};
use super::matrix::{Matrix, Order};
use super::model::{Projection, Weights};
use super::quant::{Dtype, widen};
use crate::error::{Context, Error, Result};

/// Models up to this many weights are widened to `f32` once; larger ones stay in their files
/// and are widened piece by piece, so that they need no more memory than disk.
const WIDEN_UP_TO: usize = 16 << 20;

impl Weights {
    /// Loads a folder as transformers writes it: a family of the table, in f32, f16 or bf16.
    ///
    /// The files are mapped, not read: they must not change while the model is in use.
    ///
    /// # Errors
    ///
    /// If a file is missing or damaged, or the model is of a kind this engine does not run; the
    /// message names the file, the tensor or the setting.
    pub(crate) fn load(folder: &Path) -> Result<Self> {
        let file = folder.join("config.json");
        let mut config = Config::parse(&read(&file)?).map_err(|error| in_file(&file, error))?;
        let generation = folder.join("generation_config.json");
        if generation.exists() {
            config = config.with_generation(&read(&generation)?)?;
        }
        let files = weight_files(folder)?
            .iter()
            .map(|name| Ok((name.clone(), Mapping::open(&folder.join(name))?)))
            .collect::<Result<Vec<_>>>()?;
        Self::from_files(config, files)
    }

    /// Finds every tensor of the decoder in mapped files.
    ///
    /// # Errors
    ///
    /// If a tensor is missing, damaged, or has another shape or type than the configuration says.
    pub(crate) fn from_files(config: Config, files: Vec<(String, Mapping)>) -> Result<Self> {
        let tensors = Tensors::index(files)?;
        if let Some(name) = tensors.unknown_bias(&config) {
            return Err(Error::invalid(
                name,
                "projections with bias are not supported unless config.json says so",
            ));
        }
        Self::assemble(config, &tensors)
    }
}

/// What is wrong with a configuration, and where: a server may have several models.
fn in_file(file: &Path, error: Error) -> Error {
    match error {
        Error::Config(mut context) => {
            context.message = format!("{} cannot be read", file.display());
            Error::Config(context)
        }
        other => other.within(&file.display().to_string()),
    }
}

/// Every tensor of a set of files, by name.
struct Tensors {
    by_name: HashMap<String, Tensor>,
    /// Whether matrices are widened once.
    small: bool,
}

struct Tensor {
    file: String,
    name: String,
    dtype: FileDtype,
    shape: Vec<usize>,
    section: Section,
}

impl Tensors {
    fn index(files: Vec<(String, Mapping)>) -> Result<Self> {
        let mut tensors = HashMap::new();
        for (file, mapping) in files {
            let (header, metadata) =
                SafeTensors::read_metadata(mapping.bytes()).map_err(|error| {
                    Error::Config(Context::caused(format!("{file} is damaged"), error))
                })?;
            for (name, info) in metadata.tensors() {
                let (start, end) = info.data_offsets;
                let tensor = Tensor {
                    file: file.clone(),
                    name: name.clone(),
                    dtype: info.dtype,
                    shape: info.shape.clone(),
                    section: mapping.section(8 + header + start..8 + header + end),
                };
                tensors.insert(name, tensor);
            }
        }
        let small = tensors.values().map(Tensor::len).sum::<usize>() <= WIDEN_UP_TO;
        Ok(Self {
            by_name: tensors,
            small,
        })
    }

    /// A projection's bias that the configuration knows nothing of.
    fn unknown_bias(&self, config: &Config) -> Option<&String> {
        self.by_name.keys().find(|name| {
            name.ends_with("_proj.bias")
                && !Projection::ALL.iter().any(|projection| {
                    projection.has_bias(config)
                        && name.ends_with(&format!("{}.bias", projection.path()))
                })
        })
    }

    fn get(&self, name: &str, shape: &[usize]) -> Result<&Tensor> {
        let tensor = self
            .by_name
            .get(name)
            .ok_or_else(|| Error::invalid(name, "is missing from the weights"))?;
        tensor.dtype()?;
        if tensor.shape != shape {
            return Err(Error::invalid(
                name,
                format!(
                    "has the shape {:?}, but config.json says {shape:?}",
                    tensor.shape
                ),
            ));
        }
        Ok(tensor)
    }
}

impl TensorSource for Tensors {
    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let tensor = self.get(name, &[rows, cols])?;
        let section = tensor.section.clone();
        let matrix = Matrix::mapped(rows, cols, section, tensor.dtype()?, Order::Plain);
        Ok(match self.small {
            true => Matrix::new(rows, cols, matrix.to_f32()),
            false => matrix,
        })
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let tensor = self.get(name, &[len])?;
        let mut out = vec![0.0; len];
        widen(tensor.section.bytes(), tensor.dtype()?, &mut out);
        Ok(out)
    }

    fn norms_from_one(&self, config: &Config) -> bool {
        config.family.norms_from_one
    }
}

impl Tensor {
    fn len(&self) -> usize {
        self.shape.iter().product()
    }

    fn dtype(&self) -> Result<Dtype> {
        match self.dtype {
            FileDtype::F32 => Ok(Dtype::F32),
            FileDtype::F16 => Ok(Dtype::F16),
            FileDtype::BF16 => Ok(Dtype::Bf16),
            other => Err(Error::invalid(
                &self.name,
                format!(
                    "is stored as {other:?} in {}; only F32, F16 and BF16 are read",
                    self.file
                ),
            )),
        }
    }
}

/// How a folder spells most of its numbers.
///
/// # Errors
///
/// If a file cannot be read, or is of a type that is not read here.
#[cfg(feature = "text")]
pub(crate) fn stored_as(folder: &Path) -> Result<Dtype> {
    let files = weight_files(folder)?.into_iter();
    let files = files.map(|name| Ok((name.clone(), Mapping::open(&folder.join(name))?)));
    let tensors = Tensors::index(files.collect::<Result<Vec<_>>>()?)?;
    let largest = tensors.by_name.values().max_by_key(|one| one.len());
    largest.map_or(Ok(Dtype::F32), Tensor::dtype)
}

/// The weight files of a folder: those its index names, or the one file there is.
pub(crate) fn weight_files(folder: &Path) -> Result<Vec<String>> {
    let index = folder.join("model.safetensors.index.json");
    if !index.exists() {
        return Ok(vec!["model.safetensors".to_owned()]);
    }
    #[derive(Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    let index: Index = serde_json::from_slice(&read(&index)?).map_err(|error| {
        Error::Config(Context::caused(
            format!("{} is damaged", index.display()),
            error,
        ))
    })?;
    let files: BTreeSet<String> = index.weight_map.into_values().collect();
    for file in &files {
        let mut parts = Path::new(file).components();
        if !matches!(
            (parts.next(), parts.next()),
            (Some(Component::Normal(_)), None)
        ) {
            return Err(Error::invalid(
                "weight_map",
                format!("`{file}` is not a plain file name"),
            ));
        }
    }
    Ok(files.into_iter().collect())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| {
        Error::Config(Context::caused(
            format!("cannot read {}", path.display()),
            error,
        ))
    })
}
