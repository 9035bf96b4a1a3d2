//! Web service whose requests are computed by a pool of worker processes, and which stops gracefully: no
//! request that has begun fails.
//!
//! `cargo run --release --example service -- 127.0.0.1:8080`, then `curl localhost:8080/primes/1000000`.
//! Ctrl-C or `systemctl stop` ends the service (the unit is in `mp-service.service`). With `-- --check`, the
//! program starts a second copy of itself as the service. It sends SIGTERM to all processes of the service
//! while requests are computed, and counts the failed requests.

mod check;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use mp::Pool;
use mp::inspect::Snapshot;
use mp::process::Interrupt;
use tokio::sync::Notify;

/// Computes one request in a worker process. A crash or leak in this process costs one answer.
fn count_primes(below: u64) -> u64 {
    let is_prime = |n: &u64| (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    (2..below).filter(is_prime).count() as u64
}

async fn primes(
    State(pool): State<Arc<Pool>>,
    Path(below): Path<u64>,
) -> Result<String, (StatusCode, String)> {
    let answer = pool.task(count_primes).submit_async(below).await.await;
    let failed = |error: mp::TaskError| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"));
    answer.map(|count| format!("{count}\n")).map_err(failed)
}

/// Returns the number of requests that are not answered yet, for load balancers and tests.
async fn in_flight(State(pool): State<Arc<Pool>>) -> String {
    let metrics = pool.metrics();
    (metrics.queued + metrics.running).to_string()
}

/// Returns the state of processes, queues and memory in the format of Prometheus.
async fn metrics() -> String {
    mp::Arena::current().map_or_else(|error| format!("# {error}\n"), |arena| Snapshot::of(arena).prometheus())
}

async fn serve(address: &str) -> mp::AnyResult<()> {
    // This process handles the signals: workers run until the last answer is sent. Installed before the pool
    // starts, so that no signal comes too early.
    let asked = Arc::new(Notify::new());
    let ask = Arc::clone(&asked);
    ctrlc::set_handler(move || ask.notify_one())?; // SIGINT, SIGTERM and SIGHUP
    let pool = Arc::new(Pool::builder().name("service").interrupt(Interrupt::Ignore).build()?);
    let router = Router::new().route("/primes/{below}", get(primes)).route("/in-flight", get(in_flight));
    let router = router.route("/metrics", get(metrics));
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let stop = async move { asked.notified().await };
    // Accepts nothing from then on, and returns when all connections have their answers.
    axum::serve(listener, router.with_state(Arc::clone(&pool))).with_graceful_shutdown(stop).await?;
    Arc::into_inner(pool).map_or(Ok(()), Pool::join)?;
    println!("stopped");
    Ok(())
}

fn main() -> mp::AnyResult<()> {
    match std::env::args().nth(1).as_deref() {
        Some("--check") => check::run(),
        address => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(serve(address.unwrap_or("127.0.0.1:0"))),
    }
}
