//! A control plane as they are in earnest: client certificates, another prefix, encryption at rest.

use exuvia_audit::{AuditOptions, Cause, Error, Fault, Verdict, audit};
use exuvia_testenv::certs::Authority;
use exuvia_testenv::{ControlPlane, Widgets};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::{fault, options};

const ENCRYPTION: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
    - resources: [secrets, widgets.sealed.audit.example.com]\n  providers:\n  - secretbox: {keys: [{name: key-2026, \
    secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}\n  - identity: {}\n";

#[tokio::test]
async fn behind_certificates_what_is_encrypted_is_never_current() {
    let control_plane = ControlPlane::builder()
        .etcd_client_certificates()
        .etcd_prefix("/elsewhere")
        .encryption(ENCRYPTION)
        .start()
        .await
        .unwrap();
    let client = control_plane.client().unwrap();
    let (plain, sealed) = ("plain.audit.example.com", "sealed.audit.example.com");
    for group in [plain, sealed] {
        let widgets = Widgets::in_group(group);
        widgets.install(&client, "v1alpha1").await.unwrap();
        widgets.flip_storage(&client, "v1").await.unwrap();
        widgets.create(&client, "v1", 3).await.unwrap();
    }
    let secret: Secret = serde_json::from_value(json!({"metadata": {"name": "hidden"}})).unwrap();
    let secrets: Api<Secret> = Api::default_namespaced(client);
    secrets.create(&PostParams::default(), &secret).await.unwrap();

    let options = AuditOptions {
        prefix: "elsewhere/".to_owned(), // as forgiving as the API server
        ..options(&control_plane)
    };
    let report = audit(&options).await.unwrap();
    assert_eq!(report.prefix, "/elsewhere");
    let everything = control_plane
        .etcd()
        .stored_under("/elsewhere/")
        .at(report.revision)
        .all()
        .await
        .unwrap();
    assert_eq!(report.objects, everything.len() as u64);
    let cause = Cause::Encrypted {
        provider: "secretbox".to_owned(),
        scheme: "v1".to_owned(),
        key_name: "key-2026".to_owned(),
    };
    let secrets = report.resource("secrets").unwrap();
    assert!(secrets.versions.is_empty());
    assert_eq!(
        (secrets.unreadable[0].objects, &secrets.unreadable[0].cause),
        (1, &cause)
    );
    assert_eq!(secrets.unreadable[0].keys, ["/elsewhere/secrets/default/hidden"]);

    let sealed = report.resource(&format!("widgets.{sealed}")).unwrap();
    assert_eq!((sealed.verdict, sealed.objects), (Verdict::Unreadable, 3));
    assert!(sealed.empty_versions.is_empty(), "any version may be in there");
    assert_eq!(
        (sealed.unreadable[0].objects, &sealed.unreadable[0].cause),
        (3, &cause)
    );
    let plain = report.resource(&format!("widgets.{plain}")).unwrap();
    assert_eq!(
        (plain.verdict, plain.versions["plain.audit.example.com/v1"]),
        (Verdict::Current, 3)
    );
    assert_eq!(plain.empty_versions, ["v1alpha1"]);
    assert!(!report.is_current());
    let secrets_alone = AuditOptions {
        resources: vec!["secrets".to_owned()],
        ..options.clone()
    };
    let secrets_alone = audit(&secrets_alone).await.unwrap();
    assert_eq!(secrets_alone.resources[0].verdict, Verdict::Unreadable);
    assert!(
        !secrets_alone.is_current(),
        "built-in or not, nothing is proven about it"
    );
    let json = serde_json::to_value(&report).unwrap();
    let json = json["resources"].as_array().unwrap();
    let json = json
        .iter()
        .find(|resource| resource["name"] == "secrets")
        .unwrap();
    assert_eq!(json["unreadable"][0]["cause"], "encrypted");
    assert_eq!(json["unreadable"][0]["keyName"], "key-2026");

    the_wrong_files_are_told_apart(&control_plane, &options).await;
}

async fn the_wrong_files_are_told_apart(control_plane: &ControlPlane, right: &AuditOptions) {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let other = Authority::new().unwrap();
    let foreign = other.client("etcd-client", &[]).unwrap();
    let (cert, key) = (
        write("other.crt", &foreign.cert_pem),
        write("other.key", &foreign.key_pem),
    );
    let failing = async |options: AuditOptions| audit(&options).await.unwrap_err();
    let with = |change: &dyn Fn(&mut AuditOptions)| {
        let mut options = right.clone();
        change(&mut options);
        options
    };

    let wrong_ca = with(&|options| options.cacert = write("other-ca.crt", other.ca_pem()));
    let error = failing(wrong_ca).await;
    assert!(error.to_string().contains("--cacert"), "{error}");
    assert!(matches!(fault(error), Fault::UntrustedServer(_)));

    let no_certificate = with(&|options| (options.cert, options.key) = (None, None));
    let error = failing(no_certificate).await;
    assert!(
        error
            .to_string()
            .contains("wants a client certificate; give one (--cert and --key"),
        "{error}"
    );
    assert_eq!(fault(error), Fault::WantsClientCertificate);

    let foreign = with(&|options| (options.cert, options.key) = (cert.clone(), key.clone()));
    let error = failing(foreign).await;
    assert!(matches!(fault(error), Fault::ClientCertificateRefused(_)));

    let endpoint = control_plane.etcd().endpoint().replace("https://", "http://");
    let plain = with(&|options| options.endpoints = vec![endpoint.clone()]);
    let error = failing(plain).await;
    assert!(
        error.to_string().contains("is it https:// and not http://?"),
        "{error}"
    );

    assert!(matches!(
        failing(with(&|options| options.cacert = None)).await,
        Error::NoAuthority { .. }
    ));
    assert!(matches!(
        failing(with(&|options| options.key = None)).await,
        Error::HalfAnIdentity
    ));
    let mixed = with(&|options| options.key.clone_from(&key));
    let error = failing(mixed).await;
    assert!(matches!(error, Error::Pem { .. }), "{error}");
    let no_pem = with(&|options| options.cacert = write("empty.crt", "no PEM at all"));
    let error = failing(no_pem).await;
    assert!(
        error
            .to_string()
            .contains("expected a PEM file with a CA certificate"),
        "{error}"
    );
    let missing = with(&|options| options.cert = Some("/no/such/file".into()));
    assert!(matches!(failing(missing).await, Error::File { .. }));
}
