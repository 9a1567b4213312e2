//! The options of one migration: what its spec says, otherwise the operator's settings.

use exuvia_api::{StorageMigrationSpec, parse_duration};

use crate::Options;
use crate::servers::api_server;

/// The options of one migration, or what is wrong with its spec.
pub(super) fn options(spec: &StorageMigrationSpec, defaults: &Options) -> Result<Options, String> {
    let settle = match &spec.settle {
        Some(settle) => parse_duration(settle).map_err(|error| format!("spec.settle: {error}"))?,
        None => defaults.settle,
    };
    let server = |url: &String| api_server(url).map_err(|error| format!("spec.apiServers: {error}"));
    let own: Vec<http::Uri> = spec.api_servers.iter().map(server).collect::<Result<_, _>>()?;
    let ignored = |url: &String| api_server(url).map_err(|error| format!("spec.ignoreApiServers: {error}"));
    let ignored: Vec<http::Uri> = spec
        .ignore_api_servers
        .iter()
        .map(ignored)
        .collect::<Result<_, _>>()?;
    Ok(Options {
        settle,
        api_servers: if own.is_empty() {
            defaults.api_servers.clone()
        } else {
            own
        },
        ignored_api_servers: if ignored.is_empty() {
            defaults.ignored_api_servers.clone()
        } else {
            ignored
        },
        always: defaults.always,
        // Somebody else may have trimmed storedVersions: the operator trusts only its own sweeps.
        until_recorded: true,
        patrol: true,
        #[cfg(feature = "etcd")]
        etcd: defaults.etcd.clone(),
        verify: spec.verify,
        managed_fields: spec.managed_fields,
        shed: spec.shed.clone(),
        accept_pruning: spec.accept_pruning,
        status_fallback: spec.status_fallback,
        max_concurrency: spec.max_concurrency.map_or(defaults.max_concurrency, usize::from),
        qps: spec.qps.or(defaults.qps),
        page_size: defaults.page_size,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_operators_settings_apply_unless_the_spec_says_otherwise() {
        let defaults = Options {
            settle: Duration::from_secs(7),
            qps: Some(11),
            ..Options::default()
        };
        let options_of = |spec: StorageMigrationSpec| options(&spec, &defaults);
        let plain = options_of(StorageMigrationSpec::default()).unwrap();
        assert_eq!((plain.settle, plain.qps), (defaults.settle, Some(11)));
        let own = options_of(StorageMigrationSpec {
            settle: Some("2m".into()),
            qps: Some(3),
            ..StorageMigrationSpec::default()
        })
        .unwrap();
        assert_eq!((own.settle, own.qps), (Duration::from_secs(120), Some(3)));
    }

    #[test]
    fn an_invalid_value_is_named_in_the_error() {
        let spec = StorageMigrationSpec {
            api_servers: vec!["10.0.0.1:6443".into()],
            ..StorageMigrationSpec::default()
        };
        let error = options(&spec, &Options::default()).unwrap_err();
        assert!(
            error.contains("10.0.0.1:6443") && error.contains("https://host:port"),
            "{error}"
        );
    }
}
