//! Hosts: network namespaces of this machine, whose links end at a bridge in the namespace of this process.
//!
//! This process runs in its own namespaces (`unshare`), as process 1. When it ends for any reason, the kernel
//! kills all nodes and removes namespaces, links and mounts.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::node::Node;

/// Names of the hosts. Their addresses end in 1, 2, 3.
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Address of rank 0, on the first host.
const FIRST: &str = "10.77.0.1:29500";
/// Folder of the programs, on all hosts.
const PROGRAMS: &str = "/mnt";
/// Folder of the certificates, on all hosts.
pub(super) const CERTIFICATES: &str = "/srv";
/// Folder of the certificates in the repository.
const CERTIFICATES_HERE: &str = "mp-net/tests/certificates";
/// Folders of Python's environment and of the peers' scripts, on all hosts.
const ENVIRONMENT: &str = "/opt";
const SCRIPTS: &str = "/media";

/// Script that starts a node: makes private folders, sets a host name, and then executes the program.
const START: &str = "set -e
for folder in /tmp /run /dev/shm; do mount -t tmpfs none $folder; done
hostname host-$1
shift
exec \"$@\"";

/// Runs a command, and returns its output.
pub(super) fn run(line: &str) -> Result<String, String> {
    let mut words = line.split(' ');
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("`{line}`: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("`{line}` failed: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Configures an example to use certificates.
fn with_certificates(mut command: Command) -> Command {
    for (variable, file) in
        [("MP_TLS_CA", "ca.pem"), ("MP_TLS_CERT", "member.pem"), ("MP_TLS_KEY", "member.key")]
    {
        command.env(variable, format!("{CERTIFICATES}/{file}"));
    }
    command
}

/// The hosts and their links.
pub(super) struct Hosts;

impl Hosts {
    /// Creates the hosts. `programs` is the folder of the programs.
    pub(super) fn new(programs: &str) -> Result<Self, String> {
        run(&format!("mount --bind {programs} {PROGRAMS}"))?;
        run(&format!("mount --bind {CERTIFICATES_HERE} {CERTIFICATES}"))?;
        run("mount -t tmpfs none /run")?;
        run("ip link add name bridge0 type bridge")?;
        run("ip link set bridge0 up")?;
        for (number, name) in (1..).zip(NAMES) {
            run(&format!("ip netns add {name}"))?;
            run(&format!("ip link add name port-{name} type veth peer name eth0 netns {name}"))?;
            run(&format!("ip link set port-{name} master bridge0 up"))?;
            run(&format!("ip -n {name} addr add 10.77.0.{number}/24 dev eth0"))?;
            run(&format!("ip -n {name} link set eth0 up"))?;
            run(&format!("ip -n {name} link set lo up"))?;
        }
        Ok(Self)
    }

    /// Returns a command that runs a program on a host.
    pub(super) fn command(host: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            NAMES[host],
            "unshare",
            "--mount",
            "--pid",
            "--uts",
            "--ipc",
            "--fork",
        ]);
        command.args(["--kill-child", "--mount-proc", "sh", "-c", START, "sh", NAMES[host], program]);
        command
    }

    /// Starts a role of the node program on a host, with its options.
    pub(super) fn start(&self, host: usize, role: &str, options: &str) -> Result<Node, String> {
        let mut command = Self::command(host, &format!("{PROGRAMS}/{}", super::PROGRAM));
        command.arg(role).arg(format!("rank={host}")).arg(format!("first={FIRST}")).args(options.split(' '));
        Node::start(format!("{role} on {}", NAMES[host]), command)
    }

    /// Starts an example on a host, as a launcher would.
    pub(super) fn start_example(&self, host: usize, name: &str, args: &str) -> Result<Node, String> {
        let mut command = Self::command(host, &format!("{PROGRAMS}/examples/{name}"));
        command.args(args.split(' '));
        let (address, port) = FIRST.split_once(':').unwrap_or((FIRST, ""));
        for (variable, value) in [
            ("MP_RANK", host.to_string().as_str()),
            ("MP_WORLD_SIZE", &NAMES.len().to_string()),
            ("MP_ADDR", address),
            ("MP_PORT", port),
        ] {
            command.env(variable, value);
        }
        Node::start(format!("{name} on {}", NAMES[host]), with_certificates(command))
    }

    /// Starts the agent of `torchrun` on a host, which starts an example. Returns `None` without torch.
    pub(super) fn torchrun(&self, host: usize, name: &str, args: &str) -> Result<Option<Node>, String> {
        let python = Self::python()?;
        let is_there = ["-c", "import torch"];
        if !super::succeeds(Self::command(host, &python).args(is_there)) {
            return Ok(None);
        }
        let mut command = Self::command(host, &python);
        let (hosts, address) = (NAMES.len(), format!("10.77.0.{}", host + 1));
        // Without `is_host` and `--local-addr`, the agent looks up its host name, which nothing resolves.
        let is_first = host == 0;
        let options = format!(
            "-m torch.distributed.run --no-python --nnodes {hosts} --nproc-per-node 1 --rdzv-backend c10d \
             --rdzv-endpoint 10.77.0.1:29555 --rdzv-conf is_host={is_first} --local-addr {address} \
             {PROGRAMS}/examples/{name} {args}"
        );
        command.args(options.split_whitespace());
        Node::start(format!("torchrun on {}", NAMES[host]), with_certificates(command)).map(Some)
    }

    /// Starts `mpirun` on the first host, which starts an example three times. Returns `None` if `mpirun` is
    /// missing.
    pub(super) fn mpirun(&self, name: &str, args: &str) -> Result<Option<Node>, String> {
        if !super::succeeds(Command::new("mpirun").arg("--version")) {
            return Ok(None);
        }
        let mut command = Self::command(0, "mpirun");
        let (hosts, own) = (NAMES.len(), "MP_ADDR=127.0.0.1");
        let options = format!("--allow-run-as-root --oversubscribe -n {hosts} -x {own}");
        command.args(options.split(' ')).arg(format!("{PROGRAMS}/examples/{name}")).args(args.split(' '));
        Node::start("mpirun".into(), command).map(Some)
    }

    /// Returns the Python that `MP_PYTHON` names, as hosts see it.
    fn python() -> Result<String, String> {
        let python = std::env::var("MP_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let program = "import sys; print(sys.prefix != sys.base_prefix, sys.prefix, sys.executable)";
        let output = Command::new(&python).args(["-c", program]).output();
        let output = output.map_err(|e| format!("{python}: {e}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut words = text.split_whitespace();
        let (is_environment, prefix) = (words.next() == Some("True"), words.next().unwrap_or_default());
        // An environment may be in a folder for temporary files, in which hosts have other files.
        if is_environment {
            run(&format!("mount --bind {prefix} {ENVIRONMENT}"))?;
            return Ok(format!("{ENVIRONMENT}/bin/python3"));
        }
        Ok(words.next().unwrap_or(&python).to_owned())
    }

    /// Starts a script of `benches/python` on a host, by the Python that `MP_PYTHON` names.
    pub(super) fn start_script(&self, host: usize, args: &[&str]) -> Result<Node, String> {
        let executable = Self::python()?;
        run(&format!("mount --bind benches/python {SCRIPTS}"))?;
        let mut command = Self::command(host, &executable);
        command.arg("-u").arg(format!("{SCRIPTS}/{}", args[0])).args(&args[1..]);
        Node::start(format!("{} on {}", args.join(" "), NAMES[host]), command)
    }

    /// Sends a signal to all processes of a host.
    pub(super) fn signal(&self, host: usize, signal: Signal) -> Result<(), String> {
        for pid in run(&format!("ip netns pids {}", NAMES[host]))?.split_whitespace() {
            let pid = pid.parse().ok().and_then(Pid::from_raw).ok_or("`ip netns pids` has no numbers")?;
            // The process may have ended meanwhile.
            _ = kill_process(pid, signal);
        }
        Ok(())
    }

    /// Cuts or restores the link of a host.
    pub(super) fn cut(&self, host: usize, is_cut: bool) -> Result<(), String> {
        let state = if is_cut { "down" } else { "up" };
        run(&format!("ip link set port-{} {state}", NAMES[host])).map(drop)
    }

    /// Applies a rule of nftables to the packets that arrive at a host, instead of an earlier rule.
    pub(super) fn filter(&self, host: usize, rule: Option<&str>) -> Result<(), String> {
        let (name, file) = (NAMES[host], "/run/filter.nft");
        let mut text = "table inet faults\ndelete table inet faults\n".to_owned();
        if let Some(rule) = rule {
            let hook = "type filter hook input priority 0;";
            text.push_str(&format!("table inet faults {{\nchain input {{\n{hook}\n{rule}\n}}\n}}\n"));
        }
        fs::write(file, text).map_err(|e| format!("{file}: {e}"))?;
        run(&format!("ip netns exec {name} nft -f {file}")).map(drop)
    }

    /// Limits the rate of a host's link in both directions, in Mbit/s, or removes the limit.
    pub(super) fn limit(&self, host: usize, rate: u32) -> Result<(), String> {
        let name = NAMES[host];
        for (tc, device) in
            [(format!("tc -n {name}"), "eth0".to_owned()), ("tc".into(), format!("port-{name}"))]
        {
            match rate {
                0 => run(&format!("{tc} qdisc del dev {device} root"))?,
                rate => {
                    let shape = format!("root tbf rate {rate}mbit burst 256kb latency 100ms");
                    run(&format!("{tc} qdisc add dev {device} {shape}"))?
                }
            };
        }
        Ok(())
    }

    /// Returns the numbers of bytes that the link of a host has carried: to the host, and from it.
    pub(super) fn bytes(&self, host: usize) -> Result<(u64, u64), String> {
        let line = format!("ip -s -j link show dev port-{}", NAMES[host]);
        let links: serde_json::Value =
            serde_json::from_str(&run(&line)?).map_err(|e| format!("{line}: {e}"))?;
        let read = |way: &str| links[0]["stats64"][way]["bytes"].as_u64();
        // The port of the bridge sends what the host receives.
        read("tx").zip(read("rx")).ok_or_else(|| format!("`{line}` has no counters"))
    }
}
