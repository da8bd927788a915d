//! burn-wgpu on Bevy's own device, with its default fusion and autotune.

use std::rc::Rc;
use std::time::{Duration, Instant};

use burn_tensor::backend::Backend;
use burn_tensor::ops::ModuleOps;
use burn_tensor::{Tensor, TensorData, TensorPrimitive, Transaction};
use burn_wgpu::{CubeBackend, RuntimeOptions, Wgpu, WgpuDevice, WgpuRuntime, WgpuSetup, init_device};

use crate::array::Array;
use crate::measure::{Contestant, MOST};
use crate::ours::{End, SETS};

/// The backend, with fusion.
pub type B = Wgpu;

/// The backend inside fusion.
type Inner = CubeBackend<WgpuRuntime, f32, i32, u32>;

/// Runs the work once.
pub type BurnRun = Rc<dyn Fn(&[Held]) -> Held>;

/// burn's handle of a shared device.
#[derive(Clone)]
pub struct BurnDevice(WgpuDevice);

impl BurnDevice {
    /// Call this once per device.
    pub fn new(setup: WgpuSetup) -> Self {
        Self(init_device(setup, RuntimeOptions::default()))
    }

    /// A tensor of an array's values.
    pub fn upload(&self, array: &Array) -> Held {
        self.upload_data(host_data(array))
    }

    fn upload_data(&self, data: TensorData) -> Held {
        match data.shape.as_slice().len() {
            1 => Tensor::<B, 1>::from_data(data, &self.0).into(),
            2 => Tensor::<B, 2>::from_data(data, &self.0).into(),
            3 => Tensor::<B, 3>::from_data(data, &self.0).into(),
            4 => Tensor::<B, 4>::from_data(data, &self.0).into(),
            rank => panic!("no work has tensors of rank {rank}"),
        }
    }

    /// Executes everything recorded so far, without waiting for the device.
    fn drain(&self) {
        burn_fusion::get_client::<Inner>(&self.0).sync(|| ());
    }

    /// Waits for the device.
    fn sync(&self) {
        B::sync(&self.0).expect("the device works");
    }
}

fn host_data(array: &Array) -> TensorData {
    TensorData::new(array.values.to_vec(), array.shape.clone())
}

/// A tensor of any rank used here.
#[derive(Clone)]
pub enum Held {
    One(Tensor<B, 1>),
    Two(Tensor<B, 2>),
    Three(Tensor<B, 3>),
    Four(Tensor<B, 4>),
}

macro_rules! ranks {
    ($($rank:literal $variant:ident $method:ident),*) => {
        $(impl From<Tensor<B, $rank>> for Held {
            fn from(tensor: Tensor<B, $rank>) -> Self {
                Self::$variant(tensor)
            }
        })*

        #[allow(dead_code, reason = "all ranks have one")]
        impl Held {
            $(pub fn $method(&self) -> Tensor<B, $rank> {
                match self {
                    Self::$variant(tensor) => tensor.clone(),
                    _ => panic!("the work expects another rank"),
                }
            })*

            fn into_vec(self) -> Vec<f32> {
                let data = match self { $(Self::$variant(tensor) => tensor.into_data()),* };
                data.into_vec().expect("results are f32")
            }

            fn register(self, transaction: Transaction<B>) -> Transaction<B> {
                match self { $(Self::$variant(tensor) => transaction.register(tensor)),* }
            }
        }
    };
}
ranks!(1 One one, 2 Two two, 3 Three three, 4 Four four);

/// burn's own layer norm over the last axis.
pub fn layer_norm<const D: usize>(
    x: Tensor<B, D>,
    weight: Tensor<B, 1>,
    bias: Tensor<B, 1>,
    epsilon: f64,
) -> Tensor<B, D> {
    let [x, weight, bias] =
        [x.into_primitive(), weight.into_primitive(), bias.into_primitive()].map(TensorPrimitive::tensor);
    let out = <B as ModuleOps<B>>::layer_norm(x, weight, Some(bias), epsilon);
    Tensor::from_primitive(TensorPrimitive::Float(out))
}

/// Recorded work of burn.
pub struct BurnWork {
    device: BurnDevice,
    run: BurnRun,
    sets: Vec<Vec<Held>>,
    end: End,
    last: Option<Vec<f32>>,
    output: Option<Held>,
}

impl BurnWork {
    pub fn new(device: &BurnDevice, inputs: &[Array], run: BurnRun, end: End) -> Self {
        let shared: Vec<Option<Held>> = inputs.iter().map(|array| array.shared.then(|| device.upload(array))).collect();
        let set = || inputs.iter().zip(&shared).map(|(a, s)| s.clone().unwrap_or_else(|| device.upload(a))).collect();
        let sets = (0..SETS).map(|_| set()).collect();
        Self { device: device.clone(), run, sets, end, last: None, output: None }
    }
}

impl Contestant for BurnWork {
    fn name(&self) -> String {
        "burn-wgpu".to_owned()
    }

    fn run(&mut self, repetitions: usize) -> Duration {
        self.device.sync();
        (self.last, self.output) = (None, None);
        let start = Instant::now();
        match self.end {
            End::Corner => {
                for set in self.sets.iter().cycle().take(repetitions) {
                    let output = (self.run)(set);
                    // Before the output of the previous repetition is dropped, because burn would then skip its work.
                    self.device.drain();
                    self.output = Some(output);
                }
                self.device.sync();
            }
            End::Result => self.last = Some((self.run)(&self.sets[0]).into_vec()),
        }
        start.elapsed()
    }

    fn result(&mut self) -> Vec<f32> {
        match (&self.last, &self.output) {
            (Some(values), _) => values.clone(),
            (None, Some(output)) => output.clone().into_vec(),
            (None, None) => Vec::new(),
        }
    }

    fn most(&self) -> usize {
        if self.end == End::Corner { MOST } else { 1 }
    }
}

/// Host data to the device.
pub struct BurnUpload {
    device: BurnDevice,
    array: Array,
    most: usize,
    uploaded: Vec<Held>,
}

impl BurnUpload {
    pub fn new(device: &BurnDevice, array: &Array, most: usize) -> Self {
        Self { device: device.clone(), array: array.clone(), most, uploaded: Vec::new() }
    }
}

impl Contestant for BurnUpload {
    fn name(&self) -> String {
        "burn-wgpu".to_owned()
    }

    fn run(&mut self, repetitions: usize) -> Duration {
        self.uploaded.clear();
        self.device.sync();
        // burn takes host data by value. The copy is not part of the upload.
        let data: Vec<TensorData> = (0..repetitions).map(|_| host_data(&self.array)).collect();
        let start = Instant::now();
        self.uploaded = data.into_iter().map(|data| self.device.upload_data(data)).collect();
        self.device.drain();
        self.device.sync();
        start.elapsed()
    }

    fn result(&mut self) -> Vec<f32> {
        self.uploaded.last().map_or_else(Vec::new, |tensor| tensor.clone().into_vec())
    }

    fn most(&self) -> usize {
        self.most
    }
}

/// Device data to the host, with all repetitions in one transaction, which is burn's fastest way to read several
/// tensors.
pub struct BurnReadback {
    device: BurnDevice,
    tensors: Vec<Held>,
    last: Vec<f32>,
}

impl BurnReadback {
    pub fn new(device: &BurnDevice, array: &Array, most: usize) -> Self {
        let tensors = (0..most).map(|_| device.upload(array)).collect();
        Self { device: device.clone(), tensors, last: Vec::new() }
    }
}

impl Contestant for BurnReadback {
    fn name(&self) -> String {
        "burn-wgpu".to_owned()
    }

    fn run(&mut self, repetitions: usize) -> Duration {
        self.device.sync();
        let start = Instant::now();
        let transaction = Transaction::default();
        let transaction =
            self.tensors.iter().take(repetitions).fold(transaction, |all, tensor| tensor.clone().register(all));
        let mut read = transaction.execute();
        let time = start.elapsed();
        self.last = read.pop().expect("at least one was read").into_vec().expect("it is f32");
        time
    }

    fn result(&mut self) -> Vec<f32> {
        self.last.clone()
    }

    fn most(&self) -> usize {
        self.tensors.len()
    }
}
