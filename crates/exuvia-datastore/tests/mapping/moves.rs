//! Five moves that teams really made, with objects of our own.

use serde_json::json;

use super::{compile, from, only, spec};

#[test]
fn calico_unpacks_its_metadata() {
    let mappings = compile(&spec(json!([{
        "name": "policies",
        "from": {"group": "crd.projectcalico.org", "version": "v1", "kinds": ["NetworkSet", "BlockAffinity"]},
        "to": {"group": "projectcalico.org", "version": "v3"},
        "metadata": {
            "unpack": "projectcalico.org/metadata",
            "annotations": {"example.com/first-seen": "unpacked.?creationTimestamp"},
        },
        "convert": [
            {"path": "spec.deleted", "value": "object.spec.?deleted.optMap(d, d == 'true')"},
        ],
    }])));
    let packed = json!({
        "name": "set.One", "uid": "9c2f", "creationTimestamp": "2020-02-02T02:02:02Z",
        "labels": {"role": "db", "team": "store"},
        "annotations": {"note": "new"},
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "u2", "blockOwnerDeletion": false}],
    });
    let output = only(mappings.convert(&json!({
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "NetworkSet",
        "metadata": {
            "name": "set-one", "namespace": "shop", "uid": "aa11", "resourceVersion": "7", "generation": 3,
            "creationTimestamp": "2024-01-01T00:00:00Z", "managedFields": [{"manager": "felix"}],
            "labels": {"role": "old", "kept": "yes"},
            "annotations": {
                "projectcalico.org/metadata": packed.to_string(),
                "note": "old",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            },
            "ownerReferences": [{"apiVersion": "v1", "kind": "Namespace", "name": "shop", "uid": "u1"}],
        },
        "spec": {"nets": ["10.0.0.0/8"]},
    })));
    assert_eq!(
        output.object,
        json!({
            "apiVersion": "projectcalico.org/v3",
            "kind": "NetworkSet",
            "metadata": {
                "name": "set.One", "namespace": "shop",
                "labels": {"role": "db", "team": "store", "kept": "yes"},
                "annotations": {"note": "new", "example.com/first-seen": "2020-02-02T02:02:02Z"},
            },
            "spec": {"nets": ["10.0.0.0/8"]},
        })
    );
    let owners: Vec<_> = output
        .owners
        .iter()
        .map(|owner| (owner.kind.as_str(), owner.uid.as_str()))
        .collect();
    assert_eq!(owners, [("Namespace", "u1"), ("Deployment", "u2")]);
    assert_eq!(output.owners[1].block_owner_deletion, Some(false));

    // One that was never packed, with a text that must become a boolean.
    let output = only(mappings.convert(&json!({
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "BlockAffinity",
        "metadata": {"name": "node-10-0-0-0-26"},
        "spec": {"cidr": "10.0.0.0/26", "deleted": "false"},
    })));
    assert_eq!(
        output.object,
        json!({
            "apiVersion": "projectcalico.org/v3",
            "kind": "BlockAffinity",
            "metadata": {"name": "node-10-0-0-0-26"},
            "spec": {"cidr": "10.0.0.0/26", "deleted": false},
        })
    );
}

#[test]
fn traefik_only_changes_its_group() {
    let mappings = compile(&spec(json!([{
        "name": "traefik",
        "from": {"group": "traefik.containo.us", "version": "v1alpha1", "kinds": ["IngressRoute", "Middleware", "TLSOption"]},
        "to": {"group": "traefik.io", "version": "v1alpha1"},
    }])));
    let object = json!({
        "apiVersion": "traefik.containo.us/v1alpha1",
        "kind": "IngressRoute",
        "metadata": {"name": "web", "namespace": "shop", "annotations": {"kubernetes.io/ingress.class": "traefik"}},
        "spec": {
            "entryPoints": ["web"],
            "routes": [{"kind": "Rule", "match": "Host(`shop`) && PathPrefix(`/`)", "priority": 12,
                "services": [{"name": "front", "port": 80, "weight": 0}]}],
        },
    });
    let mut expected = object.clone();
    expected["apiVersion"] = json!("traefik.io/v1alpha1");
    let output = only(mappings.convert(&object));
    assert_eq!(output.object, expected);
    assert_eq!(
        (
            output.group.as_str(),
            output.version.as_str(),
            output.kind.as_str()
        ),
        ("traefik.io", "v1alpha1", "IngressRoute")
    );
    assert_eq!(
        (output.namespace.as_deref(), output.name.as_str()),
        (Some("shop"), "web")
    );
}

#[test]
fn gateway_api_renames_the_kind_and_those_who_name_it_are_rewritten() {
    let mappings = compile(&from(json!({
        "mappings": [{
            "name": "listener-sets",
            "from": {"group": "gateway.networking.x-k8s.io", "version": "v1alpha1", "kinds": ["XListenerSet"]},
            "to": {"group": "gateway.networking.k8s.io", "version": "v1", "kind": "ListenerSet"},
            "convert": [{
                "path": "spec.listeners",
                "value": "object.spec.listeners.map(l, merge({'port': l.protocol == 'HTTPS' ? 443 : 80}, l))",
            }],
            "status": "Copy",
        }],
        "references": {"rewrite": [{
            "in": {"group": "gateway.networking.k8s.io", "version": "v1", "kind": "HTTPRoute"},
            "when": "object.spec.?parentRefs.orValue([]).exists(p, p.?kind.orValue('') == 'XListenerSet')",
            "convert": [{
                "path": "spec.parentRefs",
                "value": "object.spec.parentRefs.map(p, p.?kind.orValue('') == 'XListenerSet' \
                    ? merge(p, {'kind': 'ListenerSet', 'group': 'gateway.networking.k8s.io'}) : p)",
            }],
        }]},
    })));
    let output = only(mappings.convert(&json!({
        "apiVersion": "gateway.networking.x-k8s.io/v1alpha1",
        "kind": "XListenerSet",
        "metadata": {"name": "extra", "namespace": "shop", "generation": 2},
        "spec": {
            "parentRef": {"name": "main"},
            "listeners": [{"name": "a", "protocol": "HTTPS"}, {"name": "b", "protocol": "HTTP", "port": 8080}],
        },
        "status": {"conditions": [{"type": "Accepted", "status": "True", "observedGeneration": 2}]},
    })));
    assert_eq!(
        output.object,
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "ListenerSet",
            "metadata": {"name": "extra", "namespace": "shop"},
            "spec": {
                "parentRef": {"name": "main"},
                "listeners": [
                    {"name": "a", "protocol": "HTTPS", "port": 443},
                    {"name": "b", "protocol": "HTTP", "port": 8080},
                ],
            },
        })
    );
    let status = output.status.expect("it is copied");
    assert_eq!(status["conditions"][0]["observedGeneration"], json!(2));

    let route = |kind: &str| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "r", "namespace": "shop", "resourceVersion": "9"},
            "spec": {"parentRefs": [{"kind": kind, "name": "extra"}, {"name": "main"}]},
        })
    };
    let rewritten = mappings
        .rewrite_object(0, &route("XListenerSet"))
        .expect("it rewrites")
        .expect("a change");
    assert_eq!(
        rewritten["spec"]["parentRefs"],
        json!([{"kind": "ListenerSet", "name": "extra", "group": "gateway.networking.k8s.io"}, {"name": "main"}])
    );
    assert_eq!(rewritten["metadata"], route("")["metadata"]);
    assert_eq!(mappings.rewrite_object(0, &route("Gateway")), Ok(None));
}

#[test]
fn karpenter_splits_one_object_into_two() {
    let mappings = compile(&spec(json!([
        {
            "name": "pools",
            "from": {"group": "karpenter.sh", "version": "v1alpha5", "kinds": ["Provisioner"]},
            "to": {"group": "karpenter.sh", "version": "v1", "kind": "NodePool"},
            "convert": [
                {"path": "spec", "value": "{ \
                    'template': {'metadata': {?'labels': object.spec.?labels}, 'spec': { \
                        'requirements': object.spec.?requirements.orValue([]), \
                        ?'taints': object.spec.?taints, \
                        'nodeClassRef': {'group': 'karpenter.k8s.aws', 'kind': 'EC2NodeClass', 'name': object.metadata.name}}}, \
                    ?'limits': object.spec.?limits.?resources, \
                    'disruption': {'consolidationPolicy': object.spec.?consolidation.?enabled.orValue(false) \
                        ? 'WhenEmptyOrUnderutilized' : 'WhenEmpty', \
                        'consolidateAfter': string(object.spec.?ttlSecondsAfterEmpty.orValue(0)) + 's'}}"},
                {"path": "spec.weight", "value": "object.spec.?weight"},
            ],
        },
        {
            "name": "classes",
            "extra": true,
            "from": {"group": "karpenter.sh", "version": "v1alpha5", "kinds": ["Provisioner"], "when": "has(object.spec.provider)"},
            "to": {"group": "karpenter.k8s.aws", "version": "v1", "kind": "EC2NodeClass"},
            "convert": [{"path": "spec", "value": "{ \
                'subnetSelectorTerms': [{'tags': object.spec.provider.subnetSelector}], \
                'role': object.spec.provider.instanceProfile.replace('profile/', 'role/')}"}],
        },
    ])));
    let provisioner = json!({
        "apiVersion": "karpenter.sh/v1alpha5",
        "kind": "Provisioner",
        "metadata": {"name": "default", "labels": {"team": "a"}},
        "spec": {
            "labels": {"zone": "b"}, "ttlSecondsAfterEmpty": 30, "limits": {"resources": {"cpu": 100}},
            "consolidation": {"enabled": true},
            "provider": {"subnetSelector": {"discovery": "main"}, "instanceProfile": "profile/nodes"},
        },
    });
    let converted = mappings.convert(&provisioner).expect("it converts");
    assert_eq!(converted.taken_by, Some(0));
    let [pool, class] = converted.outputs.as_slice() else {
        panic!("two outputs")
    };
    assert_eq!(
        (pool.extra, pool.mapping, class.extra, class.mapping),
        (false, 0, true, 1)
    );
    assert_eq!(
        pool.object,
        json!({
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": "default", "labels": {"team": "a"}},
            "spec": {
                "template": {
                    "metadata": {"labels": {"zone": "b"}},
                    "spec": {
                        "requirements": [],
                        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
                    },
                },
                "limits": {"cpu": 100},
                "disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "30s"},
            },
        })
    );
    assert_eq!(
        class.object,
        json!({
            "apiVersion": "karpenter.k8s.aws/v1",
            "kind": "EC2NodeClass",
            "metadata": {"name": "default", "labels": {"team": "a"}},
            "spec": {"subnetSelectorTerms": [{"tags": {"discovery": "main"}}], "role": "role/nodes"},
        })
    );

    let mut without_provider = provisioner;
    without_provider["spec"]
        .as_object_mut()
        .expect("an object")
        .remove("provider");
    assert_eq!(
        mappings
            .convert(&without_provider)
            .expect("it converts")
            .outputs
            .len(),
        1
    );
}

#[test]
fn cert_manager_rewrites_the_keys_of_labels_and_annotations() {
    let keys = json!([{"from": "certmanager.k8s.io/", "to": "cert-manager.io/"}]);
    let mappings = compile(&from(json!({
        "mappings": [{
            "name": "certificates",
            "from": {"group": "certmanager.k8s.io", "version": "v1alpha1", "kinds": ["Certificate"]},
            "to": {"group": "cert-manager.io", "version": "v1"},
            "metadata": {
                "rewriteKeys": keys,
                "dropAnnotations": ["certmanager.k8s.io/scratch"],
                "finalizers": {"keep": ["example.com/audit"], "rename": {"certmanager.k8s.io/hold": "cert-manager.io/hold"}},
            },
            "convert": [
                {"path": "spec.subject.organizations", "value": "object.spec.?organization"},
                {"path": "spec.privateKey", "value": "{?'algorithm': object.spec.?keyAlgorithm.optMap(a, a.upperAscii())}"},
                {"path": "spec.issuerRef.group", "value": "'cert-manager.io'"},
            ],
            "remove": ["spec.organization", "spec.keyAlgorithm", "spec.acme"],
        }],
        "references": {"rewrite": [{"in": {"group": "networking.k8s.io", "version": "v1", "kind": "Ingress"}, "rewriteKeys": keys}]},
    })));
    let output = only(mappings.convert(&json!({
        "apiVersion": "certmanager.k8s.io/v1alpha1",
        "kind": "Certificate",
        "metadata": {
            "name": "tls", "namespace": "shop",
            "labels": {"certmanager.k8s.io/kind": "leaf", "team": "a"},
            "annotations": {"certmanager.k8s.io/issuer": "le", "certmanager.k8s.io/scratch": "x", "cert-manager.io/issuer": "le"},
            "finalizers": ["foreground.example.com/other", "certmanager.k8s.io/hold", "example.com/audit"],
        },
        "spec": {
            "secretName": "tls", "organization": ["Shop"], "keyAlgorithm": "rsa", "keySize": 2048,
            "issuerRef": {"name": "le", "kind": "ClusterIssuer"}, "acme": {"config": []},
        },
        "status": {"conditions": []},
    })));
    assert_eq!(
        output.object,
        json!({
            "apiVersion": "cert-manager.io/v1",
            "kind": "Certificate",
            "metadata": {
                "name": "tls", "namespace": "shop",
                "labels": {"cert-manager.io/kind": "leaf", "team": "a"},
                "annotations": {"cert-manager.io/issuer": "le"},
                "finalizers": ["cert-manager.io/hold", "example.com/audit"],
            },
            "spec": {
                "secretName": "tls", "keySize": 2048, "subject": {"organizations": ["Shop"]},
                "privateKey": {"algorithm": "RSA"},
                "issuerRef": {"name": "le", "kind": "ClusterIssuer", "group": "cert-manager.io"},
            },
        })
    );
    assert_eq!(output.status, None);

    let ingress = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": "web", "annotations": {"certmanager.k8s.io/cluster-issuer": "le"}},
    });
    let rewritten = mappings
        .rewrite_object(0, &ingress)
        .expect("it rewrites")
        .expect("a change");
    assert_eq!(
        rewritten["metadata"]["annotations"],
        json!({"cert-manager.io/cluster-issuer": "le"})
    );
    assert_eq!(mappings.rewrite_object(0, &rewritten), Ok(None));
}
