"""The properties of a Java client mean the same to librdkafka, or are refused by name."""

import pytest

from include.kafka.cluster import NotTranslatable, settings_of

LOGIN = "org.apache.kafka.common.security"
PLAIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}


def test_a_cluster_without_security_needs_nothing_and_what_clients_do_is_left_out():
    assert settings_of({"bootstrap.servers": "one:1", "acks": "all", "group.id": "tools"}) == {}


@pytest.mark.parametrize(
    ("jaas", "user", "password"),
    [
        (f'{LOGIN}.plain.PlainLoginModule required username="u" password="p";', "u", "p"),
        (
            f'{LOGIN}.plain.PlainLoginModule  required\n username = "u"\n password = "a \\"b\\" \\\\ = ;" ;',
            "u",
            'a "b" \\ = ;',
        ),
        (f"{LOGIN}.scram.ScramLoginModule required username='it' password=bare;", "it", "bare"),
        (f"{LOGIN}.scram.ScramLoginModule required password='q\"' username=u tokenauth=false;", "u", 'q"'),
    ],
)
def test_user_and_password_are_found_in_a_login_configuration(jaas, user, password):
    settings = settings_of({**PLAIN, "sasl.jaas.config": jaas})
    assert (settings["sasl.username"], settings["sasl.password"]) == (user, password)


def test_certificates_are_named_as_librdkafka_names_them():
    files = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "pem",
        "ssl.keystore.location": "/client.pem",
        "ssl.key.password": "p",
        "ssl.endpoint.identification.algorithm": "",
    }
    assert settings_of(files) == {
        "security.protocol": "SSL",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/client.pem",
        "ssl.key.location": "/client.pem",
        "ssl.key.password": "p",
        "ssl.endpoint.identification.algorithm": "none",
    }
    texts = {
        "security.protocol": "SSL",
        "ssl.truststore.certificates": "CA",
        "ssl.keystore.certificate.chain": "CHAIN",
        "ssl.keystore.key": "KEY",
    }
    assert settings_of(texts) == {
        "security.protocol": "SSL",
        "ssl.ca.pem": "CA",
        "ssl.certificate.pem": "CHAIN",
        "ssl.key.pem": "KEY",
    }


def test_a_token_from_an_identity_provider_is_asked_for_by_both_clients():
    jaas = f'{LOGIN}.oauthbearer.OAuthBearerLoginModule required clientId="id" clientSecret="hush" scope="kafka";'
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
        "sasl.jaas.config": jaas,
    }
    assert (
        settings_of(properties).items()
        >= {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "id",
            "sasl.oauthbearer.client.secret": "hush",
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
        }.items()
    )


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ({**PLAIN, "sasl.mechanism": "AWS_MSK_IAM"}, "sasl.mechanism is AWS_MSK_IAM, which"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is GSSAPI, which"),
        ({**PLAIN, "sasl.jaas.config": f'{LOGIN}.plain.PlainLoginModule required username="u";'}, "has no password"),
        (PLAIN, "sasl.jaas.config has no username"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/ca.jks"}, "ssl.truststore.type is JKS, which"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "/k.jks"}, "ssl.keystore.type is JKS, which"),
    ],
)
def test_what_librdkafka_cannot_do_is_refused_by_name(properties, sentence):
    with pytest.raises(NotTranslatable, match=sentence):
        settings_of(properties)
