//! The process itself, as every Prometheus client shows it: time, memory, files. Linux only.

use std::{fmt, fs};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet},
    metrics::MetricType,
};

#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    /// What cannot be read is left out.
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(stat) = fs::read_to_string("/proc/self/stat")
            .ok()
            .and_then(|text| Stat::parse(&text))
        {
            let ticks = as_f64(rustix::param::clock_ticks_per_second());
            encoder
                .encode_descriptor(
                    "process_cpu_seconds",
                    "Seconds of processor time, user and system",
                    None,
                    MetricType::Counter,
                )?
                .encode_counter::<NoLabelSet, _, u64>(&(as_f64(stat.cpu_ticks) / ticks), None)?;
            gauge(
                &mut encoder,
                "process_virtual_memory_bytes",
                "Virtual memory",
                &stat.virtual_bytes,
            )?;
            let resident = stat.resident_pages * rustix::param::page_size() as u64;
            gauge(
                &mut encoder,
                "process_resident_memory_bytes",
                "Resident memory",
                &resident,
            )?;
            if let Some(boot) = boot_time() {
                gauge(
                    &mut encoder,
                    "process_start_time_seconds",
                    "When the process began, in seconds since 1970",
                    &(boot + as_f64(stat.start_ticks) / ticks),
                )?;
            }
        }
        if let Ok(files) = fs::read_dir("/proc/self/fd") {
            // Reading the directory takes one of its own.
            let open = files.count().saturating_sub(1) as u64;
            gauge(&mut encoder, "process_open_fds", "Open files", &open)?;
        }
        if let Some(most) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
            gauge(&mut encoder, "process_max_fds", "Open files, at most", &most)?;
        }
        Ok(())
    }
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: &impl EncodeGaugeValue,
) -> fmt::Result {
    encoder
        .encode_descriptor(name, help, None, MetricType::Gauge)?
        .encode_gauge(value)
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    /// Fields as in proc(5), counted after the name, which may hold blanks and parentheses itself.
    fn parse(text: &str) -> Option<Self> {
        let (_, after) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after.split_whitespace().collect();
        // `state` is the third field of proc(5) and the first here.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// Seconds since 1970.
fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()
}

#[allow(clippy::cast_precision_loss, reason = "2^53 ticks are millions of years")]
fn as_f64(ticks: u64) -> f64 {
    ticks as f64
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_parentheses_shifts_nothing() {
        let text = "7 (a) (b c) S 1 1 1 0 -1 4194560 100 0 0 0 50 25 0 0 20 0 5 0 9000 1048576 256 18446744073709551615 1";
        assert_eq!(
            Stat::parse(text).unwrap(),
            Stat {
                cpu_ticks: 75,
                start_ticks: 9000,
                virtual_bytes: 1_048_576,
                resident_pages: 256,
            }
        );
        assert_eq!(Stat::parse("nonsense"), None);
    }
}
