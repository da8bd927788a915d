//! Reads and writes of shared memory happen in the order in which they were recorded.

use std::cell::RefCell;

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::host::{Array, View};
use super::random::runner;
use super::table::noise;
use crate::common::{BACKENDS, Rig};

/// Elements of each storage.
const SIZE: usize = 24;
/// Number of storages. Each has a tensor of all elements and some views.
const STORAGES: usize = 2;

/// Views of a storage, all of shape `[12]` or `[24]`. Some overlap.
fn views() -> Vec<Vec<View>> {
    let slice = |start, end, step| View::Slice { axis: 0, start, end, step };
    vec![
        vec![],
        vec![slice(0, 12, 1)],
        vec![slice(12, 24, 1)],
        vec![slice(6, 18, 1)],
        vec![slice(0, 24, 2)],
        vec![slice(23, 0, -2)],
        vec![slice(7, 19, 1), slice(-1, -13, -1)],
        vec![View::Reshape(vec![4, 6]), View::Permute(vec![1, 0]), View::Slice { axis: 0, start: 1, end: 4, step: 1 }],
    ]
}

/// One step of a recording. A place is a storage and a view of it.
#[derive(Clone, Debug)]
enum Action {
    /// Writes host data with this seed to a place.
    Write(Place, u32),
    /// Loads a place for later steps.
    Load(Place),
    /// Computes a new value from an earlier one, with an elementwise op or another kernel.
    Compute(usize, bool),
    /// Stores an earlier value to a place.
    Store(usize, Place),
    /// Updates a place in its own memory.
    Update(Place, f32),
    /// Copies one place to another, which may overlap.
    Copy(Place, Place),
    Read(usize),
    /// Ends the recording. The next one belongs to the same frame.
    Cut,
    /// Ends the recording and the frame.
    Step,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    storage: usize,
    view: usize,
}

fn place() -> impl Strategy<Value = Place> {
    (0..STORAGES, 0..views().len()).prop_map(|(storage, view)| Place { storage, view })
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        2 => (place(), 0..1000u32).prop_map(|(to, seed)| Action::Write(to, seed)),
        4 => place().prop_map(Action::Load),
        3 => (0..100usize, any::<bool>()).prop_map(|(of, map)| Action::Compute(of, map)),
        4 => (0..100usize, place()).prop_map(|(of, to)| Action::Store(of, to)),
        3 => (place(), -2.0f32..2.0).prop_map(|(to, by)| Action::Update(to, by)),
        3 => (place(), place()).prop_map(|(from, to)| Action::Copy(from, to)),
        3 => (0..100usize).prop_map(Action::Read),
        1 => Just(Action::Cut),
        1 => Just(Action::Step),
    ];
    proptest::collection::vec(action, 4..24)
}

/// The expected content of the storages.
struct Oracle {
    storages: Vec<Array>,
    views: Vec<Vec<View>>,
}

impl Oracle {
    fn load(&self, place: Place) -> Array {
        self.views[place.view].iter().fold(self.storages[place.storage].clone(), |x, view| view.of_array(&x))
    }

    fn store(&mut self, place: Place, value: &Array) {
        let positions = Array::from_fn(&[SIZE], |at| at[0] as f64);
        let positions = self.views[place.view].iter().fold(positions, |x, view| view.of_array(&x));
        assert_eq!(positions.shape, value.shape);
        for (&at, &value) in positions.values.iter().zip(&value.values) {
            self.storages[place.storage].values[at as usize] = f64::from(value as f32);
        }
    }
}

/// Runs of the flattened value, reversed and forward, so that no element keeps its position.
fn stirred(x: &Array) -> Array {
    let flat = Array::new(&[x.values.len()], x.values.clone());
    let back = flat.view(View::flip(0));
    Array::new(&x.shape, back.values)
}

fn try_actions(rig: &mut Rig, actions: &[Action]) -> Result<(), TestCaseError> {
    let views = views();
    let mut oracle = Oracle { storages: Vec::new(), views: views.clone() };
    let mut entities: Vec<Vec<Entity>> = Vec::new();
    for storage in 0..STORAGES {
        let start = noise(&[SIZE], -1.0, 1.0, storage as u32 + 1).map(|v| f64::from(v as f32));
        let whole = Tensor::from(start.to_data(DType::F32));
        oracle.storages.push(start);
        let of_views = views.iter().map(|list| {
            list.iter().fold(whole.clone(), |tensor, view| view.of_tensor(&tensor).expect("a view that needs no copy"))
        });
        entities.push(of_views.collect::<Vec<_>>().into_iter().map(|tensor| rig.spawn(tensor)).collect());
    }
    let mut expected: Vec<Array> = Vec::new();
    let mut receivers = Vec::new();
    for recording in actions.split(|action| matches!(action, Action::Cut | Action::Step)) {
        rig.with_ops(|ops| {
            record(ops, recording, &entities, &mut oracle, &mut expected, &mut receivers);
        });
        // The action after the recording determines whether the frame ends too.
        let end = recording.as_ptr_range().end;
        let next = actions.iter().find(|action| std::ptr::eq(*action, end));
        if matches!(next, Some(Action::Step)) {
            rig.app.update();
        }
    }
    for (storage, entities) in entities.iter().enumerate() {
        expected.push(oracle.load(Place { storage, view: 0 }));
        let whole = entities[0];
        receivers.push(rig.record(move |ops| ops.read(whole)).expect("a tensor"));
    }
    for (i, (receiver, expected)) in receivers.iter().zip(&expected).enumerate() {
        let data = rig.wait(receiver).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let bound = (1e-5, 1e-4);
        if let Some(what) = super::table::difference(&Array::from_data(&data), expected, bound, "backend", "host") {
            return Err(TestCaseError::fail(format!("read {i} on the {}: {what}", rig.backend)));
        }
    }
    for entity in entities.into_iter().flatten() {
        rig.app.world_mut().despawn(entity);
    }
    Ok(())
}

/// Records one run of a system and applies the same steps on the host.
fn record(
    ops: &TensorCommands,
    actions: &[Action],
    entities: &[Vec<Entity>],
    oracle: &mut Oracle,
    expected: &mut Vec<Array>,
    receivers: &mut Vec<TensorReceiver>,
) {
    let entity = |place: Place| entities[place.storage][place.view];
    let mut values: Vec<(TensorValue, Array)> = Vec::new();
    // A value with a different number of elements cannot be stored there. One with a different shape is reshaped.
    fn fitted<'a>(
        ops: &'a TensorCommands,
        value: &(TensorValue<'a>, Array),
        to: &[usize],
    ) -> Option<(TensorValue<'a>, Array)> {
        if value.1.values.len() != to.iter().product::<usize>() {
            return None;
        }
        let sizes: Vec<isize> = to.iter().map(|&n| n as isize).collect();
        Some((ops.reshape(value.0, &sizes).expect("as many"), value.1.view(View::Reshape(to.to_vec()))))
    }
    for action in actions {
        match *action {
            Action::Write(to, seed) => {
                let shape = oracle.load(to).shape;
                let data = noise(&shape, -1.0, 1.0, seed).map(|v| f64::from(v as f32));
                ops.write_data(entity(to), &data.to_data(DType::F32)).expect("it fits");
                oracle.store(to, &data);
            }
            Action::Load(from) => {
                // A view within the recording. It needs no copy, so only the order of steps preserves the value.
                let value =
                    ops.unsqueeze(entity(from), &[0]).and_then(|value| ops.squeeze(value, 0)).expect("a tensor");
                values.push((value, oracle.load(from)));
            }
            Action::Compute(of, map) if !values.is_empty() => {
                let (value, array) = &values[of % values.len()];
                let pair = if map {
                    (ops.mul(*value, 0.75).expect("floats"), array.map(|v| f64::from(v as f32 * 0.75)))
                } else {
                    let n = array.values.len() as isize;
                    let sizes: Vec<isize> = array.shape.iter().map(|&n| n as isize).collect();
                    let flat = ops.reshape(*value, &[n]).and_then(|flat| ops.flip(flat, 0)).expect("as many");
                    (ops.reshape(flat, &sizes).and_then(|value| ops.copy(value)).expect("as many"), stirred(array))
                };
                values.push(pair);
            }
            Action::Store(of, to) if !values.is_empty() => {
                let shape = oracle.load(to).shape;
                if let Some((value, array)) = fitted(ops, &values[of % values.len()], &shape) {
                    ops.store(value, entity(to)).expect("it fits");
                    oracle.store(to, &array);
                }
            }
            Action::Update(to, by) => {
                let value = ops.add(entity(to), by).expect("floats");
                ops.store(value, entity(to)).expect("it fits");
                let array = oracle.load(to).map(|v| f64::from(v as f32 + by));
                oracle.store(to, &array);
            }
            Action::Copy(from, to) => {
                let value =
                    ops.unsqueeze(entity(from), &[0]).and_then(|value| ops.squeeze(value, 0)).expect("a tensor");
                let shape = oracle.load(to).shape;
                if let Some((value, array)) = fitted(ops, &(value, oracle.load(from)), &shape) {
                    ops.store(value, entity(to)).expect("it fits");
                    oracle.store(to, &array);
                }
            }
            Action::Read(of) if !values.is_empty() => {
                let (value, array) = &values[of % values.len()];
                receivers.push(ops.read(*value).expect("a value"));
                expected.push(array.clone());
            }
            _ => {}
        }
    }
}

#[test]
fn shared_memory_is_read_and_written_in_recorded_order() {
    for backend in BACKENDS {
        let rig = RefCell::new(Rig::new(backend));
        let result = runner(96).run(&actions(), |actions| try_actions(&mut rig.borrow_mut(), &actions));
        assert!(result.is_ok(), "on the {backend}: {}", result.err().map(|e| e.to_string()).unwrap_or_default());
    }
}

#[test]
fn a_value_read_before_a_store_is_old_after_it() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let (a, b) = (
            rig.spawn(Tensor::full([65], 1.0, DType::F32).expect("small")),
            rig.spawn(Tensor::zeros([65], DType::F32).expect("small")),
        );
        let old = rig
            .record(move |ops| {
                let old = ops.add(a, 0.0)?;
                let lazy = ops.unsqueeze(a, &[0])?;
                ops.store(7.0, a)?;
                let sum = ops.add(old, lazy)?;
                let row = ops.squeeze(sum, 0)?;
                ops.store(row, b)?;
                ops.read(lazy)
            })
            .expect("it fits");
        assert_eq!(rig.wait(&old).expect("values").to_f32(), [1.0; 65]);
        assert_eq!((rig.read(a).to_f32(), rig.read(b).to_f32()), (vec![7.0; 65], vec![2.0; 65]));
    }
}

#[test]
fn two_tensors_change_places_without_a_third() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let (a, b) = (
            rig.spawn(Tensor::ones([257], DType::F16).expect("small")),
            rig.spawn(Tensor::zeros([257], DType::F16).expect("small")),
        );
        rig.record(move |ops| {
            let (of_a, of_b) = (ops.squeeze(a, Axes::ALL)?, ops.squeeze(b, Axes::ALL)?);
            ops.store(of_a, b)?;
            ops.store(of_b, a)
        })
        .expect("it fits");
        assert_eq!((rig.read(a).to_f32(), rig.read(b).to_f32()), (vec![0.0; 257], vec![1.0; 257]));
    }
}

#[test]
fn a_tensor_is_turned_in_its_own_memory() {
    for backend in BACKENDS {
        for dtype in DType::ALL {
            let mut rig = Rig::new(backend);
            let start = noise(&[7, 7], 0.0, 2.0, 1).to_data(dtype);
            let x = rig.spawn(Tensor::from(start.clone()));
            rig.record(move |ops| {
                let turned = ops.transpose(x)?;
                let turned = ops.flip(turned, 1)?;
                ops.store(turned, x)
            })
            .expect("it fits");
            let expected = Array::from_data(&start).transpose().view(View::flip(1));
            assert_eq!(Array::from_data(&rig.read(x)), expected, "{dtype} on the {backend}");
        }
    }
}

#[test]
fn products_see_weights_that_change_after_many_uses() {
    for backend in BACKENDS {
        for dtype in [DType::F32, DType::F16] {
            let mut rig = Rig::new(backend);
            let x = rig.spawn(Tensor::ones([5, 33], dtype).expect("small"));
            let weights = rig.spawn(Tensor::zeros([33, 17], dtype).expect("small"));
            for value in [2.0, 3.0, -1.0] {
                rig.record(move |ops| ops.store(value, weights)).expect("it fits");
                // The CPU backend caches packed weights from their second use on.
                for _ in 0..4 {
                    let product = rig.compute(move |ops| ops.matmul(x, weights)).expect("it fits");
                    assert_eq!(product.to_f32(), vec![33.0 * value; 5 * 17], "{dtype} on the {backend}");
                }
                assert_eq!(rig.figures().packed_bytes > 0, backend == Backend::Cpu, "{dtype} on the {backend}");
            }
        }
    }
}
