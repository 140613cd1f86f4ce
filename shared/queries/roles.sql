-- The roles of functions and of the database users that they connect as; run by the migration job.

-- name: find_owner_to_become
-- The role of Cloud SQL's administrators, when this user is one: the schema's owner, which may make roles.
SELECT rolname AS name FROM pg_roles
WHERE rolname = 'cloudsqlsuperuser' AND rolname <> current_user AND pg_has_role(oid, 'SET');

-- name: lock_roles
-- Keeps two jobs on one database from granting at once, until the end of the transaction.
SELECT pg_advisory_xact_lock(CAST(:key AS bigint));

-- name: make_step_role
-- Makes the role of a step function, with the rights that every step has, unless it is there.
SELECT make_step_role(:function);

-- name: find_user
-- A database user with the roles of functions that it has itself, and whether it could become an administrator; no row:
-- there is none of this name.
SELECT u.rolsuper OR u.rolcreaterole OR u.rolbypassrls OR EXISTS (
        SELECT FROM pg_roles AS a
        WHERE (a.rolsuper OR a.rolcreaterole) AND NOT u.rolsuper AND pg_has_role(u.oid, a.oid, 'MEMBER')
    ) AS administrator,
    ARRAY(
        SELECT r.rolname::text
        FROM pg_auth_members AS m
        INNER JOIN pg_roles AS r ON r.oid = m.roleid
        WHERE m.member = u.oid AND r.rolname LIKE 'echoproof\_%'
        ORDER BY r.rolname
    ) AS roles
FROM pg_roles AS u
WHERE u.rolname = :user_name;

-- name: give_role
-- Grants a role to a user, unless that was done.
SELECT give_role(:user_name, :role_name);

-- name: take_role
-- Revokes a role from a user.
SELECT take_role(:user_name, :role_name);
