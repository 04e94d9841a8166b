CREATE TABLE acknowledgement (
	incident SERIAL NOT NULL, 
	who VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	ends_at FLOAT NOT NULL, 
	PRIMARY KEY (incident)
);

CREATE TABLE audit (
	number SERIAL NOT NULL, 
	at FLOAT NOT NULL, 
	who VARCHAR NOT NULL, 
	action VARCHAR NOT NULL, 
	target VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	result VARCHAR NOT NULL, 
	PRIMARY KEY (number)
);

CREATE TABLE backfill (
	number SERIAL NOT NULL, 
	root INTEGER NOT NULL, 
	target VARCHAR NOT NULL, 
	begins VARCHAR, 
	ends VARCHAR, 
	key VARCHAR NOT NULL, 
	who VARCHAR NOT NULL, 
	phase VARCHAR NOT NULL, 
	said VARCHAR NOT NULL, 
	failure VARCHAR, 
	readers VARCHAR, 
	version BIGINT, 
	rows_before BIGINT, 
	rows_after BIGINT, 
	planned_at FLOAT NOT NULL, 
	phase_at FLOAT NOT NULL, 
	ended_at FLOAT, 
	PRIMARY KEY (number)
);

CREATE TABLE backfill_request (
	root SERIAL NOT NULL, 
	driver VARCHAR NOT NULL, 
	asked_at FLOAT NOT NULL, 
	tries INTEGER NOT NULL, 
	PRIMARY KEY (root)
);

CREATE TABLE backlog (
	flow VARCHAR NOT NULL, 
	at FLOAT NOT NULL, 
	behind BIGINT NOT NULL, 
	PRIMARY KEY (flow, at)
);

CREATE TABLE desired (
	flow VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	PRIMARY KEY (flow)
);

CREATE TABLE driver (
	driver VARCHAR NOT NULL, 
	ends_epoch BIGINT NOT NULL, 
	ends_at FLOAT, 
	intended_at FLOAT, 
	epoch BIGINT NOT NULL, 
	handle VARCHAR, 
	PRIMARY KEY (driver)
);

CREATE TABLE incident (
	number SERIAL NOT NULL, 
	target VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	error VARCHAR NOT NULL, 
	began_at FLOAT NOT NULL, 
	told_at FLOAT, 
	ended_at FLOAT, 
	PRIMARY KEY (number)
);

CREATE UNIQUE INDEX one_open_incident ON incident (target) WHERE ended_at IS NULL;

CREATE TABLE lease (
	flow VARCHAR NOT NULL, 
	epoch BIGINT NOT NULL, 
	holder VARCHAR NOT NULL, 
	expires_at FLOAT NOT NULL, 
	writes VARCHAR, 
	mode VARCHAR, 
	wanted_at FLOAT, 
	PRIMARY KEY (flow)
);

CREATE INDEX ix_lease_writes ON lease (writes);

CREATE TABLE loss (
	number SERIAL NOT NULL, 
	flow VARCHAR NOT NULL, 
	generation INTEGER NOT NULL, 
	topic VARCHAR NOT NULL, 
	partition INTEGER NOT NULL, 
	first BIGINT NOT NULL, 
	after BIGINT, 
	accepted_at FLOAT NOT NULL, 
	who VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	PRIMARY KEY (number)
);

CREATE TABLE maintenance_window (
	number SERIAL NOT NULL, 
	target VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	who VARCHAR NOT NULL, 
	why VARCHAR NOT NULL, 
	step VARCHAR, 
	epoch BIGINT, 
	planned_at FLOAT NOT NULL, 
	asked_at FLOAT, 
	opened_at FLOAT, 
	closed_at FLOAT, 
	before VARCHAR, 
	after VARCHAR, 
	PRIMARY KEY (number)
);

CREATE TABLE outdated (
	number SERIAL NOT NULL, 
	flow VARCHAR NOT NULL, 
	target VARCHAR NOT NULL, 
	generation INTEGER NOT NULL, 
	batch BIGINT NOT NULL, 
	begins VARCHAR, 
	ends VARCHAR, 
	since FLOAT NOT NULL, 
	PRIMARY KEY (number)
);

CREATE TABLE pause (
	number SERIAL NOT NULL, 
	flow VARCHAR NOT NULL, 
	target VARCHAR NOT NULL, 
	epoch BIGINT NOT NULL, 
	began_at FLOAT NOT NULL, 
	ended_at FLOAT NOT NULL, 
	PRIMARY KEY (number)
);

CREATE TABLE pulse (
	name VARCHAR NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (name)
);

CREATE TABLE reader (
	name VARCHAR NOT NULL, 
	target VARCHAR NOT NULL, 
	version BIGINT NOT NULL, 
	since FLOAT NOT NULL, 
	ends_at FLOAT NOT NULL, 
	PRIMARY KEY (name, target)
);

CREATE TABLE release (
	flow VARCHAR NOT NULL, 
	at FLOAT NOT NULL, 
	who VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	PRIMARY KEY (flow)
);

CREATE TABLE reset (
	flow VARCHAR NOT NULL, 
	accepts_loss BOOLEAN NOT NULL, 
	who VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	PRIMARY KEY (flow)
);

CREATE TABLE rewind (
	number SERIAL NOT NULL, 
	target VARCHAR NOT NULL, 
	moment VARCHAR NOT NULL, 
	cut VARCHAR NOT NULL, 
	views VARCHAR NOT NULL, 
	key VARCHAR NOT NULL, 
	who VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	phase VARCHAR NOT NULL, 
	said VARCHAR NOT NULL, 
	failure VARCHAR, 
	stopped VARCHAR, 
	planned_at FLOAT NOT NULL, 
	phase_at FLOAT NOT NULL, 
	ended_at FLOAT, 
	PRIMARY KEY (number)
);

CREATE TABLE run (
	flow VARCHAR NOT NULL, 
	turn INTEGER NOT NULL, 
	intended_at FLOAT, 
	attempts INTEGER NOT NULL, 
	failure VARCHAR, 
	error VARCHAR, 
	needs_person BOOLEAN NOT NULL, 
	sign_at FLOAT, 
	PRIMARY KEY (flow)
);

CREATE TABLE shutdown (
	began_at FLOAT NOT NULL, 
	drivers VARCHAR NOT NULL, 
	ended_at FLOAT, 
	PRIMARY KEY (began_at)
);

CREATE TABLE stale (
	number SERIAL NOT NULL, 
	target VARCHAR NOT NULL, 
	begins VARCHAR, 
	ends VARCHAR, 
	why VARCHAR NOT NULL, 
	since FLOAT NOT NULL, 
	PRIMARY KEY (number)
);

CREATE TABLE tick (
	flow VARCHAR NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (flow)
);
