//! What is said of credentials and proxies that do not work: never what they are (PITFALLS B27).

use std::error::Error as StdError;

use kube::client::AuthError;
use kube::config::KubeconfigError;

/// A sentence about credentials or a proxy, if the error or one of its causes is about those. kube's own words quote a
/// credential plugin's arguments, environment and output, and a proxy's URL with its password.
pub fn unusable(error: &(dyn StdError + 'static)) -> Option<String> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // An error in a box is another type than the error.
        let boxed = error.downcast_ref::<Box<kube::Error>>().map(Box::as_ref);
        match error.downcast_ref::<kube::Error>().or(boxed) {
            Some(kube::Error::Auth(error)) => return Some(of_auth(error)),
            Some(kube::Error::InferKubeconfig(error)) => return Some(of_kubeconfig(error).to_owned()),
            Some(
                kube::Error::ProxyProtocolUnsupported { .. } | kube::Error::ProxyProtocolDisabled { .. },
            ) => {
                return Some(
                    "the proxy that the kubeconfig or the environment names cannot be used: proxies are not supported; \
                     take proxy-url out, or use a tunnel"
                        .to_owned(),
                );
            }
            _ => {}
        }
        if let Some(error) = error.downcast_ref::<AuthError>() {
            return Some(of_auth(error));
        }
        cause = error.source();
    }
    None
}

/// Which part of a kubeconfig cannot be used, and nothing of what it holds.
pub fn of_kubeconfig(error: &KubeconfigError) -> &'static str {
    match error {
        KubeconfigError::CurrentContextNotSet => {
            "the kubeconfig has no current-context: set one, or name a context"
        }
        KubeconfigError::KindMismatch | KubeconfigError::ApiVersionMismatch => {
            "the kubeconfigs are of different kinds or apiVersions and cannot be merged"
        }
        KubeconfigError::LoadContext(_) => "the kubeconfig's context has no content",
        KubeconfigError::LoadClusterOfContext(_) => "the kubeconfig has no such cluster as its context names",
        KubeconfigError::MissingClusterUrl => "the kubeconfig's cluster has no server",
        KubeconfigError::ParseClusterUrl(_) => "the server of the kubeconfig's cluster is not a valid URL",
        KubeconfigError::ParseProxyUrl(_) => "the proxy-url of the kubeconfig's cluster is not a valid URL",
        KubeconfigError::LoadCertificateAuthority(_) => {
            "the certificate-authority of the kubeconfig's cluster cannot be read, or is not base64"
        }
        KubeconfigError::LoadClientCertificate(_) => {
            "the client-certificate of the kubeconfig's user cannot be read, or is not base64"
        }
        KubeconfigError::LoadClientKey(_) => {
            "the client-key of the kubeconfig's user cannot be read, or is not base64"
        }
        KubeconfigError::ParseCertificates(_) => "a certificate in the kubeconfig is not PEM",
        KubeconfigError::FindPath => "no home directory is known to look for a kubeconfig in",
        _ => "the kubeconfig is not what it should be",
    }
}

fn of_auth(error: &AuthError) -> String {
    const PLUGIN: &str = "the credential plugin of the kubeconfig's user";
    match error {
        AuthError::AuthExecRun { out, .. } => format!(
            "{PLUGIN} failed ({}); run it by hand to see why, for what it says may hold a secret and is not shown",
            out.status
        ),
        AuthError::AuthExecStart(why) => {
            format!("{PLUGIN} cannot be started: {why}; is it installed, and on PATH?")
        }
        AuthError::AuthExecParse(_) | AuthError::ExecPluginFailed | AuthError::AuthExec(_) => {
            format!("{PLUGIN} did not answer with an ExecCredential that can be used; run it by hand to see why")
        }
        AuthError::MissingCommand => format!("{PLUGIN} has no command: name one in the kubeconfig"),
        AuthError::InvalidBearerToken(_) | AuthError::InvalidBasicAuth(_) => {
            "the token or password of the kubeconfig's user holds characters that cannot be sent (a line break?); log in \
             again"
                .to_owned()
        }
        AuthError::ReadTokenFile(why, path) => format!("the token file {} cannot be read: {why}", path.display()),
        _ => "the credentials of the kubeconfig's user cannot be used; log in again, or give another kubeconfig or context"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_plugin_was_given_or_has_said_is_repeated() {
        let out = std::process::Output {
            status: std::process::ExitStatus::default(),
            stdout: b"CANARY".to_vec(),
            stderr: b"CANARY".to_vec(),
        };
        let run = || AuthError::AuthExecRun {
            cmd: "TOKEN=CANARY login --password CANARY".to_owned(),
            out: Box::new(out.clone()),
        };
        let wrapped = kube::Error::Service(Box::new(run()));
        for error in [kube::Error::Auth(run()), wrapped] {
            let said = crate::brief(&error);
            assert!(
                !said.contains("CANARY") && said.contains("credential plugin"),
                "{said}"
            );
        }
        let proxy = kube::Error::ProxyProtocolDisabled {
            proxy_url: Box::new(http::Uri::from_static("http://me:CANARY@proxy:3128")),
            protocol_feature: "kube/http-proxy",
        };
        assert!(!crate::brief(&proxy).contains("CANARY"));
    }
}
