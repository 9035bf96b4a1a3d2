#!/bin/sh
# Makes the certificates of the tests again. All but expired.pem are valid until 2120.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
new() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }
ca() {
    new "$work/$1.key"
    openssl req -x509 -new -key "$work/$1.key" -days 36500 -subj "/CN=$1" -out "$1.pem" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
}
# member FILE CA NAME YEAR_OF_THE_END
member() {
    new "$1.key"
    : > "$work/index"
    printf '%s\n' "[ca]" "default_ca=d" "[d]" "database=$work/index" "new_certs_dir=$work" "rand_serial=yes" \
        "default_md=sha256" "policy=p" "x509_extensions=x" "[p]" "commonName=supplied" \
        "[x]" "subjectAltName=DNS:$3" > "$work/config"
    openssl req -new -key "$1.key" -subj "/CN=$1" -out "$work/request"
    openssl ca -batch -notext -config "$work/config" -cert "$2.pem" -keyfile "$work/$2.key" \
        -startdate 20200101000000Z -enddate "${4}0101000000Z" -in "$work/request" -out "$1.pem"
}
ca ca
ca other-ca
member member ca mp-cluster 2120
member other other-ca mp-cluster 2120
member unnamed ca host-a 2120
member expired ca mp-cluster 2021
chmod 644 ./*.key
rm -r "$work"
