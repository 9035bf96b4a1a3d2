//! Trains on batches that worker processes make, one of which is killed: no batch is missing, and the same ones come after a resume.
//!
//! `cargo run --release --features data --example data_loader`

use mp::data::{Context, DataLoader, Dataset, Item};
use mp::{AnyResult, Tensor};
use serde::{Deserialize, Serialize};

/// Points of two classes: above and below a line.
#[derive(Serialize, Deserialize)]
struct Points(usize);

impl Dataset for Points {
    type Batch = (Tensor<f32>, Tensor<f32>);

    fn len(&self) -> usize {
        self.0
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, (&[2], &[]), |item, rng, (point, class)| {
            // An image would be decoded into its row here, and cropped by `rng`.
            let x = (item.index % 100) as f32 / 50.0 - 1.0 + rng.f32() / 100.0;
            let y = (item.index / 100 % 100) as f32 / 50.0 - 1.0;
            point.copy_from_slice(&[x, y]);
            class[0] = if 2.0 * x - y > 0.0 { 1.0 } else { 0.0 };
            Ok(())
        })
    }
}

fn main() -> AnyResult<()> {
    let loader =
        DataLoader::builder(Points(10_000)).batch_size(32).shuffle(true).seed(17).num_workers(2).build()?;
    let mut weights = [0.0_f32; 2];
    for epoch in 0..5 {
        let (mut right, mut seen) = (0, 0);
        for batch in loader.epoch(epoch) {
            let batch = batch?;
            if (epoch, batch.info.number) == (2, 100) {
                // As the kernel does when memory is short.
                std::process::Command::new("kill").args(["-9", &loader.pids()[0].to_string()]).status()?;
            }
            let (points, classes) = batch.into_inner();
            for (point, class) in points.as_slice()?.chunks_exact(2).zip(classes.iter()) {
                let p = 1.0 / (1.0 + (-weights[0] * point[0] - weights[1] * point[1]).exp());
                right += usize::from((p > 0.5) == (class > 0.5));
                seen += 1;
                weights.iter_mut().zip(point).for_each(|(weight, x)| *weight += 0.1 * (class - p) * x);
            }
        }
        assert_eq!(seen, 10_000);
        println!("epoch {epoch}: {:.1} % right", 100.0 * right as f64 / seen as f64);
    }
    println!("{}", loader.metrics());
    Ok(())
}
