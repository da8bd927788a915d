//! The stored cases: nodes with their attributes, and values on the host.

use std::path::Path;
use std::sync::Arc;

use super::bounds::Bound;
use bevy_tensor_compute::prelude::*;
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};

/// One node with its inputs and expected outputs.
#[derive(Clone)]
pub struct Case {
    pub name: String,
    pub op: String,
    pub opset: i64,
    pub attrs: Map<String, Value>,
    pub inputs: Vec<Option<Host>>,
    pub outputs: Vec<Option<Host>>,
    /// The bound that the case itself asks for.
    pub tolerance: Option<Bound>,
}

/// A stored value.
#[derive(Clone)]
pub struct Host {
    /// ONNX's name of the element type.
    pub onnx: String,
    pub shape: Vec<usize>,
    /// Whether the file leaves open if this value has no axes: its shape is `[1]`, and the case does not list its
    /// scalars.
    pub perhaps_scalar: bool,
    pub values: Values,
}

/// Values that represent every stored type exactly. Booleans are integers.
#[derive(Clone)]
pub enum Values {
    Floats(Vec<f64>),
    Integers(Vec<i128>),
}

/// An operator's name and its cases.
pub type Family = (String, Vec<Arc<Case>>);

/// All files of a folder, by operator. A folder without cases is an error.
pub fn load_all(folder: &Path) -> Result<Vec<Family>, Box<dyn std::error::Error>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let op = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            let cases = load(&std::fs::read(&path)?).map_err(|error| format!("{}: {error}", path.display()))?;
            if cases.is_empty() {
                return Err(format!("{} has no cases", path.display()).into());
            }
            files.push((op, cases));
        }
    }
    if files.is_empty() {
        return Err(format!("{} has no cases", folder.display()).into());
    }
    files.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(files)
}

fn load(bytes: &[u8]) -> Result<Vec<Arc<Case>>, Box<dyn std::error::Error>> {
    let (_, header) = SafeTensors::read_metadata(bytes)?;
    let cases = header.metadata().as_ref().and_then(|entries| entries.get("cases")).ok_or("no cases")?;
    let tensors = SafeTensors::deserialize(bytes)?;
    let cases: Vec<Value> = serde_json::from_str(cases)?;
    cases.iter().map(|case| Ok(Arc::new(Case::read(case, &tensors)?))).collect()
}

impl Case {
    fn read(case: &Value, tensors: &SafeTensors) -> Result<Self, Box<dyn std::error::Error>> {
        let text = |key: &str| case[key].as_str().map(str::to_owned).ok_or_else(|| format!("a case has no {key}"));
        let name = text("case")?;
        let scalars = case["scalars"].as_array();
        let scalar = |value: &str| scalars.map(|list| list.iter().any(|name| name.as_str() == Some(value)));
        let values = |key: &str| -> Result<Vec<Option<Host>>, Box<dyn std::error::Error>> {
            let names = case[key].as_array().ok_or("a case has no list of values")?;
            let read = |value: &Value| -> Result<Option<Host>, Box<dyn std::error::Error>> {
                match value.as_str() {
                    None | Some("") => Ok(None),
                    Some(value) => {
                        let onnx = case["dtypes"][value].as_str().unwrap_or("an unnamed type");
                        Ok(Some(match tensors.tensor(&format!("{name}/{value}")) {
                            Ok(view) => Host::read(onnx, &view, scalar(value)),
                            // Sequences and similar types are not stored.
                            Err(_) => Host::opaque(onnx, Vec::new()),
                        }))
                    }
                }
            };
            names.iter().map(read).collect()
        };
        let (inputs, outputs) = (values("inputs")?, values("outputs")?);
        let attrs = case["attrs"].as_object().cloned().unwrap_or_default();
        let tolerance = match &case["tolerance"] {
            Value::Null => None,
            tolerance => Some(Bound::read(tolerance).map_err(|reason| format!("{name}: {reason}"))?),
        };
        let opset = case["opset"].as_i64().unwrap_or(0);
        Ok(Self { op: text("op")?, opset, name, attrs, inputs, outputs, tolerance })
    }

    pub fn int(&self, attr: &str, default: i64) -> i64 {
        self.attrs.get(attr).and_then(Value::as_i64).unwrap_or(default)
    }

    pub fn flag(&self, attr: &str, default: bool) -> bool {
        self.int(attr, i64::from(default)) != 0
    }

    pub fn float(&self, attr: &str, default: f32) -> f32 {
        self.attrs.get(attr).and_then(Value::as_f64).map_or(default, |value| value as f32)
    }

    pub fn text(&self, attr: &str, default: &'static str) -> &str {
        self.attrs.get(attr).and_then(Value::as_str).unwrap_or(default)
    }

    pub fn ints(&self, attr: &str) -> Option<Vec<i64>> {
        self.attrs.get(attr)?.as_array()?.iter().map(Value::as_i64).collect()
    }

    pub fn floats(&self, attr: &str) -> Option<Vec<f64>> {
        self.attrs.get(attr)?.as_array()?.iter().map(Value::as_f64).collect()
    }
}

fn numbers<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.chunks_exact(N).map(|chunk| read(chunk.try_into().expect("chunks have this size"))).collect()
}

impl Host {
    /// `scalar` tells whether the value has no axes, where the case knows it.
    fn read(onnx: &str, view: &safetensors::tensor::TensorView, scalar: Option<bool>) -> Self {
        let bytes = view.data();
        let values = match view.dtype() {
            Dtype::F64 => Values::Floats(numbers(bytes, f64::from_le_bytes)),
            Dtype::F32 => Values::Floats(numbers(bytes, |b| f64::from(f32::from_le_bytes(b)))),
            Dtype::F16 => Values::Floats(numbers(bytes, |b| f64::from(f16::from_le_bytes(b)))),
            Dtype::BF16 => Values::Floats(numbers(bytes, |b| f64::from(bf16::from_le_bytes(b)))),
            Dtype::I64 => Values::Integers(numbers(bytes, |b| i64::from_le_bytes(b).into())),
            Dtype::U64 => Values::Integers(numbers(bytes, |b| u64::from_le_bytes(b).into())),
            Dtype::I32 => Values::Integers(numbers(bytes, |b| i32::from_le_bytes(b).into())),
            Dtype::U32 => Values::Integers(numbers(bytes, |b| u32::from_le_bytes(b).into())),
            Dtype::I16 => Values::Integers(numbers(bytes, |b| i16::from_le_bytes(b).into())),
            Dtype::U16 => Values::Integers(numbers(bytes, |b| u16::from_le_bytes(b).into())),
            Dtype::I8 => Values::Integers(numbers(bytes, |b| i8::from_le_bytes(b).into())),
            Dtype::U8 | Dtype::BOOL => Values::Integers(numbers(bytes, |b| u8::from_le_bytes(b).into())),
            _ => return Self::opaque(onnx, view.shape().to_vec()),
        };
        let shape = if scalar == Some(true) { Vec::new() } else { view.shape().to_vec() };
        Self { onnx: onnx.to_owned(), perhaps_scalar: scalar.is_none() && shape == [1], shape, values }
    }

    /// A value of a type that the crate does not support. Only the name of the type matters.
    fn opaque(onnx: &str, shape: Vec<usize>) -> Self {
        Self { onnx: format!("{onnx} as stored"), shape, perhaps_scalar: false, values: Values::Integers(Vec::new()) }
    }

    pub fn ints(&self) -> Vec<i64> {
        match &self.values {
            Values::Integers(values) => values.iter().map(|&v| v as i64).collect(),
            Values::Floats(values) => values.iter().map(|&v| v as i64).collect(),
        }
    }

    /// The largest finite magnitude; 0 without any.
    pub fn largest(&self) -> f64 {
        self.floats().into_iter().map(f64::abs).filter(|v| v.is_finite()).fold(0.0, f64::max)
    }

    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn floats(&self) -> Vec<f64> {
        match &self.values {
            Values::Integers(values) => values.iter().map(|&v| v as f64).collect(),
            Values::Floats(values) => values.clone(),
        }
    }

    /// The type of the values in the crate, see [`device_type`].
    pub fn dtype(&self) -> Result<DType, String> {
        device_type(&self.onnx)
    }

    /// Converts to a tensor, if every value fits.
    pub fn tensor(&self) -> Result<TensorData, String> {
        let dtype = self.dtype()?;
        let misfit = || format!("{} values that 32 bits cannot hold", self.onnx);
        fn whole<T: TryFrom<i128>>(values: &[i128]) -> Option<Vec<T>> {
            values.iter().map(|&v| T::try_from(v).ok()).collect()
        }
        let shape = self.shape.clone();
        let data = match (&self.values, dtype) {
            (Values::Floats(values), DType::F16) => {
                TensorData::new(&values.iter().map(|&v| f16::from_f64(v)).collect::<Vec<_>>(), shape)
            }
            (Values::Floats(values), DType::BF16) => {
                TensorData::new(&values.iter().map(|&v| bf16::from_f64(v)).collect::<Vec<_>>(), shape)
            }
            (Values::Floats(values), _) => {
                let narrow: Vec<f32> = values.iter().map(|&v| v as f32).collect();
                if narrow.iter().zip(values).any(|(n, v)| n.is_finite() != v.is_finite()) {
                    return Err(misfit());
                }
                TensorData::new(&narrow, shape)
            }
            (Values::Integers(v), DType::I32) => TensorData::new(&whole::<i32>(v).ok_or_else(misfit)?, shape),
            (Values::Integers(v), DType::U32) => TensorData::new(&whole::<u32>(v).ok_or_else(misfit)?, shape),
            (Values::Integers(v), DType::I8) => TensorData::new(&whole::<i8>(v).ok_or_else(misfit)?, shape),
            (Values::Integers(v), DType::U8) => TensorData::new(&whole::<u8>(v).ok_or_else(misfit)?, shape),
            (Values::Integers(v), DType::Bool) => {
                TensorData::new(&v.iter().map(|&v| Truth::from(v != 0)).collect::<Vec<_>>(), shape)
            }
            (Values::Integers(_), other) => return Err(format!("integers stored for {other}")),
        };
        data.map_err(|error| error.to_string())
    }
}

/// ONNX's name of the element type with this number.
pub fn onnx_type(number: i64) -> &'static str {
    match number {
        1 => "FLOAT",
        2 => "UINT8",
        3 => "INT8",
        4 => "UINT16",
        5 => "INT16",
        6 => "INT32",
        7 => "INT64",
        9 => "BOOL",
        10 => "FLOAT16",
        11 => "DOUBLE",
        12 => "UINT32",
        13 => "UINT64",
        16 => "BFLOAT16",
        21 => "UINT4",
        22 => "INT4",
        25 => "UINT2",
        26 => "INT2",
        _ => "an unnamed type",
    }
}

/// The crate's type for an ONNX type: the same, or a wider one with the same values. 64-bit types become 32-bit types;
/// [`Host::tensor`] fails if that would change an integer.
pub fn device_type(onnx: &str) -> Result<DType, String> {
    Ok(match onnx {
        "FLOAT" | "DOUBLE" => DType::F32,
        "FLOAT16" => DType::F16,
        "BFLOAT16" => DType::BF16,
        "INT64" | "INT32" | "INT16" => DType::I32,
        "UINT64" | "UINT32" | "UINT16" => DType::U32,
        "INT8" | "INT4" | "INT2" => DType::I8,
        "UINT8" | "UINT4" | "UINT2" => DType::U8,
        "BOOL" => DType::Bool,
        other => return Err(format!("{other} is no tensor type")),
    })
}
