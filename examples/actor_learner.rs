//! Reinforcement learning with one learner and eight actor processes. Each actor balances a pole on a cart,
//! with the newest policy plus random noise on its weights. The learner changes the policy in the direction
//! of the successful noise (evolution strategies). Actors never wait for the next policy, and the learner
//! never waits for any particular actor. So a killed actor costs only one episode.
//!
//! `cargo run --release --example actor_learner`

use mp::queue::watch;
use mp::{FrozenTensor, Queue, SpawnOptions, Tensor, start_processes};
use serde::{Deserialize, Serialize};

const ACTORS: usize = 8;
/// Number of weights: four for the state of the cart, and one for the bias.
const WEIGHTS: usize = 5;
/// Number of episodes for one step of the learner.
const EPISODES: usize = 64;
/// Maximum number of steps of an episode. The next constant is the mean number of steps with which the policy
/// counts as good.
const LONGEST: u32 = 500;
const GOOD: f64 = 475.0;
const NOISE: f32 = 0.3;
const RATE: f32 = 0.3;

#[derive(Serialize, Deserialize)]
struct Policy {
    version: u32,
    weights: FrozenTensor<f32>,
}

#[derive(Serialize, Deserialize)]
struct Episode {
    version: u32,
    /// Seed of the noise that the actor has added to the weights.
    seed: u64,
    steps: u32,
}

#[derive(Clone, Serialize, Deserialize)]
struct Job {
    policy: watch::Receiver<Policy>,
    episodes: Queue<Episode>,
}

/// Random numbers that depend on the seed only, in each process.
struct Numbers(u64);

impl Numbers {
    fn uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 40) as f32 / (1_u32 << 24) as f32
    }

    fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f32::consts::TAU * self.uniform()).cos()
    }
}

fn noise(seed: u64) -> [f32; WEIGHTS] {
    let mut numbers = Numbers(seed);
    std::array::from_fn(|_| numbers.normal())
}

/// Returns the number of steps for which the pole stays up.
fn episode(weights: &[f32; WEIGHTS], seed: u64) -> u32 {
    let mut numbers = Numbers(seed ^ 0x5151);
    let mut state: [f32; 4] = std::array::from_fn(|_| 0.1 * numbers.uniform() - 0.05);
    for step in 0..LONGEST {
        let [x, speed, angle, turn] = state;
        if x.abs() > 2.4 || angle.abs() > 0.2094 {
            return step;
        }
        let decision: f32 = state.iter().zip(weights).map(|(s, w)| s * w).sum::<f32>() + weights[4];
        let force = if decision > 0.0 { 10.0 } else { -10.0 };
        let (sin, cos) = angle.sin_cos();
        let push = (force + 0.05 * turn * turn * sin) / 1.1;
        let bend = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1));
        let pull = push - 0.05 * bend * cos / 1.1;
        state = [x + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * turn, turn + 0.02 * bend];
    }
    LONGEST
}

/// Runs episodes, each with the newest policy, until the learner has ended.
fn actor(rank: usize, job: Job) -> mp::AnyResult<()> {
    let mut seed = (rank as u64) << 32;
    while job.policy.has_changed().is_ok() {
        let policy = job.policy.borrow_and_update()?; // the same one as before, if there is no newer one
        seed += 1;
        let noise = noise(seed);
        let weights = std::array::from_fn(|i| policy.weights[[i]] + NOISE * noise[i]);
        let played = Episode { version: policy.version, seed, steps: episode(&weights, seed) };
        if job.episodes.put(played).is_err() {
            break; // closed
        }
    }
    Ok(())
}

fn mean_return(weights: &[f32; WEIGHTS]) -> f64 {
    (0..100).map(|seed| f64::from(episode(weights, seed << 48))).sum::<f64>() / 100.0
}

fn main() -> mp::AnyResult<()> {
    let mut weights = [0.0; WEIGHTS];
    let policy = |version, weights: &[f32; WEIGHTS]| -> mp::AnyResult<Policy> {
        Ok(Policy { version, weights: Tensor::from_slice(weights, [WEIGHTS])?.freeze() })
    };
    let (learner, receiver) = watch::channel(policy(0, &weights)?)?;
    let job = Job { policy: receiver, episodes: Queue::bounded(EPISODES)? };
    let episodes = job.episodes.clone();
    let actors = start_processes(actor, job, SpawnOptions::nprocs(ACTORS))?;

    let (mut version, mut reached) = (0, mean_return(&weights));
    println!("version 0: mean return {reached:.1}");
    while reached < GOOD && version < 300 {
        // Episodes of an older policy are skipped.
        let mut played = Vec::new();
        while played.len() < EPISODES {
            let episode = episodes.get()?.ok_or("it is open")?;
            played.extend((episode.version == version).then_some(episode));
        }
        let mean = played.iter().map(|e| e.steps as f32).sum::<f32>() / EPISODES as f32;
        let spread = played.iter().map(|e| (e.steps as f32 - mean).powi(2)).sum::<f32>() / EPISODES as f32;
        for episode in &played {
            let advantage = (episode.steps as f32 - mean) / (spread.sqrt() + 1e-6);
            let noise = noise(episode.seed);
            weights.iter_mut().zip(noise).for_each(|(w, n)| *w += RATE * advantage * n / EPISODES as f32);
        }
        version += 1;
        learner.send(policy(version, &weights)?)?;
        reached = mean_return(&weights);
        if version % 20 == 0 {
            println!("version {version}: mean return {reached:.1}");
        }
    }
    episodes.close();
    drop(learner);
    actors.join()?;
    println!("{ACTORS} actors, {version} versions of the policy: mean return {reached:.1} of {LONGEST}");
    assert!(reached >= GOOD, "it has not learnt: {reached}");
    Ok(())
}
