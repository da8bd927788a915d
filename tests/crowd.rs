//! Crowds: many entities, one network.

use bevy::diagnostic::FrameCount;
use bevy::prelude::*;
use bevy_tensor_compute::crowd::{CrowdFailed, CrowdSeat, CrowdStats, InCrowd, TensorCrowd, TensorCrowdPlugin};
use bevy_tensor_compute::error::CrowdError;
use bevy_tensor_compute::prelude::*;
use bytemuck::{Pod, Zeroable};

use crate::common::{BACKENDS, Rig};

#[derive(Component, Clone, Copy, Pod, Zeroable, Debug, PartialEq)]
#[repr(C)]
struct Senses([f32; 3]);

#[derive(Component, Clone, Copy, Pod, Zeroable, Debug, PartialEq)]
#[repr(C)]
struct Acts([f32; 2]);

type Crowd = TensorCrowd<Senses, Acts>;
type Seat = CrowdSeat<Senses, Acts>;

/// What the network of these tests makes of an observation.
fn expected(senses: Senses) -> Acts {
    let [a, b, c] = senses.0;
    Acts([a + 10.0 * b + 100.0 * c, -a])
}

fn network(weight: Entity) -> Crowd {
    Crowd::new(move |ops, rows| ops.matmul_nt(rows, weight))
}

fn weight() -> Tensor {
    Tensor::from_rows(&[[1.0f32, 10.0, 100.0], [-1.0, 0.0, 0.0]]).expect("rows of equal length")
}

/// An app with one crowd and `count` members.
fn crowd_of(backend: Backend, count: usize) -> (Rig, Entity, Vec<Entity>) {
    let mut rig = Rig::with_plugin(backend, TensorCrowdPlugin::<Senses, Acts>::default());
    let weight = rig.spawn(weight());
    let crowd = rig.app.world_mut().spawn(network(weight)).id();
    let members = (0..count).map(|i| spawn_member(&mut rig, crowd, i)).collect();
    (rig, crowd, members)
}

fn spawn_member(rig: &mut Rig, crowd: Entity, i: usize) -> Entity {
    rig.app.world_mut().spawn((Senses([i as f32, 1.0, 0.5]), InCrowd(crowd))).id()
}

fn stats(rig: &Rig, crowd: Entity) -> CrowdStats {
    rig.app.world().get::<Crowd>(crowd).expect("a crowd").stats()
}

/// Steps until every living member has the action of its present observation.
fn settle(rig: &mut Rig, members: &[Entity]) {
    let members = members.to_vec();
    rig.step_until(|app| {
        members.iter().all(|&member| match app.world().get_entity(member) {
            Ok(entity) => entity.get::<Acts>() == entity.get::<Senses>().map(|senses| expected(*senses)).as_ref(),
            Err(_) => true,
        })
    });
}

#[test]
fn every_member_gets_its_own_action() {
    for backend in BACKENDS {
        let (mut rig, crowd, members) = crowd_of(backend, 100);
        settle(&mut rig, &members);
        assert_eq!((stats(&rig, crowd).members, stats(&rig, crowd).rows), (100, 128));
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn an_action_names_the_frame_of_its_observation() {
    let (mut rig, _, members) = crowd_of(Backend::Cpu, 3);
    settle(&mut rig, &members);
    let frame_of = |rig: &Rig| rig.app.world().get::<Seat>(members[1]).expect("a seat").frame().expect("an action");
    let before = frame_of(&rig);
    let now = rig.app.world().resource::<FrameCount>().0;
    assert!(before < now);
    rig.app.world_mut().entity_mut(members[1]).insert(Senses([5.0, 5.0, 5.0]));
    settle(&mut rig, &members);
    assert!(frame_of(&rig) >= now, "the new action answers the new observation");
}

#[test]
fn members_come_and_go_while_steps_are_in_flight() {
    for backend in BACKENDS {
        let (mut rig, crowd, mut members) = crowd_of(backend, 40);
        let mut next = 40;
        for round in 0..60 {
            rig.app.update();
            // A despawned member's row goes to a new member, which must not get the old one's action.
            let gone = members.remove(round * 7 % members.len());
            rig.app.world_mut().despawn(gone);
            for _ in 0..round % 3 {
                members.push(spawn_member(&mut rig, crowd, next));
                next += 1;
            }
            let world = rig.app.world();
            for &member in &members {
                let (senses, acts) = (world.get::<Senses>(member), world.get::<Acts>(member));
                if let Some(acts) = acts.filter(|acts| **acts != Acts::zeroed()) {
                    assert_eq!(*acts, expected(*senses.expect("a member")), "round {round} on {backend}");
                }
            }
        }
        settle(&mut rig, &members);
        assert_eq!(stats(&rig, crowd).members, members.len());
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn a_crowd_that_shrinks_gives_rows_back() {
    let (mut rig, crowd, members) = crowd_of(Backend::Cpu, 1000);
    settle(&mut rig, &members);
    assert_eq!(stats(&rig, crowd).rows, 1024);
    let (stay, go) = members.split_at(20);
    for &member in go {
        rig.app.world_mut().despawn(member);
    }
    rig.app.world_mut().entity_mut(stay[3]).insert(Senses([1.0, 2.0, 3.0]));
    settle(&mut rig, stay);
    rig.step_until(|app| app.world().get::<Crowd>(crowd).expect("a crowd").stats().rows == 32);
    assert_eq!(stats(&rig, crowd).members, 20);
    // Nobody is left.
    for &member in stay {
        rig.app.world_mut().despawn(member);
    }
    rig.app.update();
    assert_eq!((stats(&rig, crowd).members, stats(&rig, crowd).rows), (0, 0));
    let steps = stats(&rig, crowd).steps;
    (0..5).for_each(|_| rig.app.update());
    assert_eq!(stats(&rig, crowd).steps, steps, "an empty crowd records nothing");
}

#[test]
fn only_changed_rows_are_uploaded_to_the_gpu() {
    let (mut rig, crowd, members) = crowd_of(Backend::Gpu, 256);
    settle(&mut rig, &members);
    rig.step_until(|app| app.world().get::<Crowd>(crowd).expect("a crowd").stats().uploaded_rows == 0);
    rig.app.world_mut().entity_mut(members[77]).insert(Senses([7.0, 7.0, 7.0]));
    rig.step_until(|app| app.world().get::<Crowd>(crowd).expect("a crowd").stats().uploaded_rows == 16);
    settle(&mut rig, &members);
}

#[test]
fn launches_and_plans_do_not_depend_on_the_number_of_members() {
    let cost = |count: usize| {
        let (mut rig, crowd, members) = crowd_of(Backend::Gpu, count);
        settle(&mut rig, &members);
        let change = |rig: &mut Rig| {
            let steps = stats(rig, crowd).steps;
            for &member in &members {
                rig.app.world_mut().get_mut::<Senses>(member).expect("a member").0[1] += 1.0;
            }
            rig.step_until(|app| app.world().get::<Crowd>(crowd).expect("a crowd").stats().steps > steps);
            settle(rig, &members);
        };
        change(&mut rig);
        // The read of the last change may overlap with a step; count launches per step.
        let (before, steps) = (rig.figures(), stats(&rig, crowd).steps);
        change(&mut rig);
        let (after, done) = (rig.figures(), stats(&rig, crowd).steps - steps);
        assert_eq!((after.dispatches - before.dispatches) % done, 0);
        ((after.dispatches - before.dispatches) / done, after.plans_built - before.plans_built)
    };
    assert_eq!(cost(10), cost(10_000));
    assert_eq!(cost(10).1, 0, "a steady crowd plans nothing");
}

#[test]
fn a_slow_backend_gets_no_more_steps_than_allowed() {
    let (mut rig, crowd, members) = crowd_of(Backend::Cpu, 10);
    rig.app.world_mut().get_mut::<Crowd>(crowd).expect("a crowd").in_flight = 1;
    for _ in 0..200 {
        rig.app.update();
        assert!(stats(&rig, crowd).in_flight <= 1);
    }
    let seen = stats(&rig, crowd);
    assert!(seen.answers <= seen.steps && seen.steps - seen.answers <= 1, "{seen:?}");
    settle(&mut rig, &members);
}

#[test]
fn crowds_share_weights_and_members_change_sides() {
    let (mut rig, first, members) = crowd_of(Backend::Cpu, 20);
    let weight = rig.spawn(Tensor::from_rows(&[[0.0f32, 0.0, 1.0], [1.0, 0.0, 0.0]]).expect("rows"));
    let second = rig.app.world_mut().spawn(network(weight)).id();
    settle(&mut rig, &members);
    rig.app.world_mut().entity_mut(members[4]).insert(InCrowd(second));
    rig.step_until(|app| app.world().get::<Acts>(members[4]) == Some(&Acts([0.5, 4.0])));
    assert_eq!((stats(&rig, first).members, stats(&rig, second).members), (19, 1));
    rig.app.world_mut().entity_mut(members[5]).remove::<InCrowd>();
    rig.app.update();
    rig.app.update();
    assert!(rig.app.world().get::<Seat>(members[5]).is_none());
    assert_eq!(stats(&rig, first).members, 18);
}

#[test]
fn a_replaced_crowd_takes_its_members_over() {
    let (mut rig, crowd, members) = crowd_of(Backend::Cpu, 50);
    settle(&mut rig, &members);
    let weight = rig.spawn(Tensor::from_rows(&[[2.0f32, 0.0, 0.0], [0.0, 2.0, 0.0]]).expect("rows"));
    rig.app.world_mut().entity_mut(crowd).insert(network(weight));
    rig.step_until(|app| app.world().get::<Acts>(members[9]) == Some(&Acts([18.0, 2.0])));
    assert_eq!(stats(&rig, crowd).members, 50);
}

#[test]
fn a_network_with_the_wrong_result_is_reported_once() {
    #[derive(Resource, Default)]
    struct Failed(Vec<CrowdError>);

    let mut rig = Rig::with_plugin(Backend::Cpu, TensorCrowdPlugin::<Senses, Acts>::default());
    rig.app.init_resource::<Failed>();
    rig.app.add_observer(|failed: On<CrowdFailed>, mut all: ResMut<Failed>| all.0.push(failed.error.clone()));
    let halved = Crowd::new(|ops, rows| ops.slice(rows, 0, 0, 8));
    let crowd = rig.app.world_mut().spawn(halved).id();
    for i in 0..12 {
        spawn_member(&mut rig, crowd, i);
    }
    (0..10).for_each(|_| rig.app.update());
    let failed = std::mem::take(&mut rig.app.world_mut().resource_mut::<Failed>().0);
    assert_eq!(failed.len(), 1, "{failed:?}");
    let text = failed[0].to_string();
    assert_eq!(text, "the network returned f32 of shape [8, 3]; the actions are f32 of shape [16, 2]");
    // A network that cannot be recorded.
    let missing = Entity::PLACEHOLDER;
    rig.app.world_mut().entity_mut(crowd).insert(network(missing));
    (0..10).for_each(|_| rig.app.update());
    let failed = std::mem::take(&mut rig.app.world_mut().resource_mut::<Failed>().0);
    assert!(matches!(failed[..], [CrowdError::Network(_)]), "{failed:?}");
}

#[cfg(feature = "onnx")]
#[test]
fn crowds_run_an_onnx_model_and_share_its_weights() {
    use crate::onnx_model as file;
    use bevy_tensor_compute::onnx::OnnxModel;

    for backend in BACKENDS {
        let mut rig = Rig::with_plugin(backend, TensorCrowdPlugin::<Senses, Acts>::default());
        let weight = file::floats("weight", &[3, 2], &[1.0, -1.0, 10.0, 0.0, 100.0, 0.0]);
        let graph = file::graph(
            &[file::node("MatMul", &["senses", "weight"], &["acts"])],
            &[file::value("senses", file::FLOAT, &[-1, 3])],
            &[file::value("acts", file::FLOAT, &[-1, 2])],
            &[weight],
        );
        let model = file::spawn(&mut rig, &file::model(&graph));
        let model = rig.app.world().get::<OnnxModel>(model).expect("a model").clone();
        let crowds = [Crowd::onnx(model.clone()), Crowd::onnx(model)];
        let crowds = crowds.map(|crowd| rig.app.world_mut().spawn(crowd).id());
        let members: Vec<Entity> = (0..40).map(|i| spawn_member(&mut rig, crowds[i % 2], i)).collect();
        settle(&mut rig, &members);
        assert_eq!(crowds.map(|crowd| stats(&rig, crowd).members), [20, 20]);
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn despawning_a_crowd_in_flight_leaves_its_members() {
    for backend in BACKENDS {
        let (mut rig, crowd, members) = crowd_of(backend, 30);
        rig.app.update();
        rig.app.world_mut().despawn(crowd);
        (0..10).for_each(|_| rig.app.update());
        assert!(members.iter().all(|&member| rig.app.world().get::<Senses>(member).is_some()));
        assert!(members.iter().all(|&member| rig.app.world().get::<Seat>(member).is_none()));
        assert_eq!(rig.faults(), []);
    }
}

/// The policy of the example `crowd`, with its numpy twin's answers (`tools/crowd_policy.py`).
#[test]
fn the_shipped_policy_answers_as_numpy_does() {
    #[derive(Component, Clone, Copy, Pod, Zeroable)]
    #[repr(C)]
    struct Row([f32; 64]);
    #[derive(Component, Clone, Copy, Pod, Zeroable)]
    #[repr(C)]
    struct Answer([f32; 8]);

    let file = |path: &str| std::fs::read(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).expect("a file");
    let (policy, known) = (file("assets/models/crowd.safetensors"), file("tests/data/crowd.safetensors"));
    let policy = safetensors::SafeTensors::deserialize(&policy).expect("a safetensors file");
    let known = safetensors::SafeTensors::deserialize(&known).expect("a safetensors file");
    let floats = |view: safetensors::tensor::TensorView| bytemuck::pod_collect_to_vec::<u8, f32>(view.data());
    let (senses, acts) = (floats(known.tensor("senses").expect("senses")), floats(known.tensor("acts").expect("acts")));
    for backend in BACKENDS {
        let mut rig = Rig::with_plugin(backend, TensorCrowdPlugin::<Row, Answer>::default());
        let layers = ["hidden1", "hidden2", "out"].map(|layer| {
            ["weight", "bias"].map(|part| {
                let view = policy.tensor(&format!("{layer}.{part}")).expect("a layer");
                let shape = view.shape().to_vec();
                rig.spawn(Tensor::from_slice(&floats(view), shape).expect("fits"))
            })
        });
        let crowd = TensorCrowd::<Row, Answer>::new(move |ops, rows| {
            let layer = |x, i: usize| ops.linear(x, layers[i][0], layers[i][1]);
            layer(ops.relu(layer(ops.relu(layer(rows, 0)?)?, 1)?)?, 2)
        });
        let crowd = rig.app.world_mut().spawn(crowd).id();
        let members: Vec<Entity> = senses
            .chunks_exact(64)
            .map(|row| rig.app.world_mut().spawn((Row(row.try_into().expect("64")), InCrowd(crowd))).id())
            .collect();
        let answered = |app: &App, member| {
            app.world().get::<CrowdSeat<Row, Answer>>(member).is_some_and(|seat| seat.frame().is_some())
        };
        rig.step_until(|app| members.iter().all(|&member| answered(app, member)));
        for (member, expected) in members.iter().zip(acts.chunks_exact(8)) {
            let Answer(found) = *rig.app.world().get::<Answer>(*member).expect("an action");
            for (a, b) in found.iter().zip(expected) {
                assert!((a - b).abs() <= 1e-4, "{found:?} instead of {expected:?} on {backend}");
            }
        }
    }
}
