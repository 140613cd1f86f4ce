-- What `echoproof smoke` reads of the catalog about the functions' roles.

-- name: function_roles
-- Every role of a function that this server has.
SELECT r.rolname::text AS role FROM pg_roles AS r WHERE r.rolname LIKE 'echoproof\_%' AND NOT r.rolcanlogin;

-- name: logins_of_function_roles
-- Who may log in with which of these roles, and whether it could give itself any right.
SELECT u.rolname::text AS login, array_agg(r.rolname::text ORDER BY r.rolname) AS roles,
    u.rolsuper OR u.rolcreaterole OR EXISTS (
        SELECT FROM pg_roles AS a WHERE a.rolname = 'cloudsqlsuperuser' AND pg_has_role(u.oid, a.oid, 'MEMBER')
    ) AS administrator
FROM pg_auth_members AS m
INNER JOIN pg_roles AS r ON r.oid = m.roleid
INNER JOIN pg_roles AS u ON u.oid = m.member
WHERE r.rolname = ANY(CAST(:roles AS text[])) AND u.rolcanlogin AND m.inherit_option
GROUP BY u.oid, u.rolname, u.rolsuper, u.rolcreaterole
ORDER BY u.rolname;

-- name: rights_held
-- Those of the given rights on tables or any of their columns that the given roles have; an unknown table is an error.
SELECT asked.role, asked.object, asked.held AS right
FROM unnest(CAST(:roles AS text[]), CAST(:tables AS text[]), CAST(:rights AS text[])) AS asked (role, object, held)
WHERE EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = asked.role)
    AND CASE WHEN asked.held = 'DELETE'
        THEN has_table_privilege(asked.role, asked.object, asked.held)
        ELSE has_any_column_privilege(asked.role, asked.object, asked.held)
    END;
